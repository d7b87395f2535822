"""One simulated engine core: continuous batching, step by step, in virtual time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from specwatch.lab.simulator.acceptance import SimulatedAcceptance
from specwatch.lab.simulator.counters import SimulatedCounters
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation

_PREFILL = -1
_CACHED_THRESHOLDS = 4096


class SimulatedScheduler:
    """Schedules as vLLM V1 does: running requests first, then the queue, within a token budget.

    A step begins strictly before the time that :meth:`advance` is asked to reach and its outcome
    appears when it ends, so the result does not depend on how an interval is cut into calls.
    """

    def __init__(
        self,
        settings: SimulatedSettings,
        speculation: SimulatedSpeculation | None,
        index: int,
        incarnation: int,
        clock: float,
    ) -> None:
        """``clock`` is the virtual time at which the core is ready."""
        self.settings = settings
        self.speculation = speculation
        self.index = index
        self.clock = clock
        self.k = speculation.k if speculation else 0
        self.launch_lookup = (
            speculation.lookup(settings.max_num_seqs)
            if speculation is not None and settings.engines == 1
            else None
        )
        """Draft tokens by number of scheduled requests; None for always ``k``."""
        self.ordered: int | list[int] | None = None
        """Draft tokens that the switch ordered, from the next step on, or the same by number of
        scheduled requests; None for the launch's."""
        self._proposed = self.k
        """Draft tokens that the last step proposed for each request."""
        self.counters = SimulatedCounters(self.k, settings.max_model_len)
        self.waiting: deque[SimulatedSequence] = deque()
        self.running: list[SimulatedSequence] = []
        self.blocks = settings.blocks(speculating=speculation is not None)
        self.free_blocks = self.blocks
        self.acceptance: SimulatedAcceptance = settings.acceptance
        self.on_finish: Callable[[SimulatedSequence], None] | None = None
        self._random = random.Random(f"acceptance/{settings.seed}/{index}/{incarnation}")
        self._plan: list[tuple[SimulatedSequence, int, int]] = []
        self.step_end: float | None = None
        """Virtual time at which the step under way ends; None between steps."""
        self._thresholds: dict[tuple[float, int], tuple[float, ...]] = {}

    @property
    def load(self) -> int:
        """Weight for routing: a waiting request counts as four running ones, as in vLLM."""
        return 4 * len(self.waiting) + len(self.running)

    @property
    def running_shown(self) -> int:
        """Running requests as of the last step that ended, which is what vLLM's gauge has."""
        return sum(sequence.computed > sequence.cached_tokens for sequence in self.running)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache's blocks in use, 0 to 1."""
        return 1.0 - self.free_blocks / self.blocks

    def set_acceptance(self, acceptance: SimulatedAcceptance) -> None:
        """Draw from ``acceptance`` from the next step's end on."""
        self.acceptance = acceptance
        self._thresholds.clear()

    def submit(self, sequence: SimulatedSequence) -> None:
        """Put a sequence at the end of the queue."""
        self.waiting.append(sequence)

    def abort(self, sequence: SimulatedSequence) -> None:
        """Take an unfinished sequence out, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def advance(self, until: float) -> None:
        """Run to virtual time ``until``."""
        while True:
            if self.step_end is None:
                if self.clock >= until or not (self.running or self.waiting):
                    break
                self._begin_step()
            end = self.step_end
            if end is None or end > until:
                break
            self._finish_step(end)
        if self.step_end is None and self.clock < until:
            self.clock = until

    def _begin_step(self) -> None:
        self._plan = []
        budget, preempted = self._plan_running(self.settings.max_num_batched_tokens)
        if not preempted:
            self._plan_waiting(budget)
        if not self._plan:
            return
        verified = decoding = prefilled = 0
        for _, tokens, drafts in self._plan:
            if drafts == _PREFILL:
                prefilled += tokens
            else:
                verified += tokens
                decoding += 1
        costs = self.settings.costs
        duration = costs.step(len(self._plan), verified, prefilled)
        if self.speculation is not None:
            ordered = self.launch_lookup if self.ordered is None else self.ordered
            if isinstance(ordered, list):
                ordered = ordered[len(self._plan)]
            self._proposed = self.k if ordered is None else ordered
            passes = self.speculation.passes(self._proposed)
            duration += costs.draft(decoding, passes) * self.speculation.draft_cost
        self.counters.busy += duration
        self.step_end = self.clock + duration

    def _plan_running(self, budget: int) -> tuple[int, bool]:
        """Plan requests that run already; returns the budget left and whether one was preempted."""
        plan, k = self._plan, self.k
        max_model_len, block_size = self.settings.max_model_len, self.settings.block_size
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            total = sequence.request.prompt_tokens + sequence.generation_tokens
            missing = total - sequence.computed
            if missing == 1 and sequence.generation_tokens:
                room = max(0, min(k, max_model_len - total - 1, budget - 1))
                drafts = min(room, self._proposed, self._likely(sequence.request.temperature))
                tokens, reserved = 1 + drafts, 1 + room
            else:
                drafts, tokens = _PREFILL, min(missing, budget)
                reserved = tokens
            needed = -(-(sequence.computed + reserved) // block_size) - sequence.blocks
            while needed > self.free_blocks:
                preempted = True
                if self._preempt_last() is sequence:
                    return budget, True
            if needed > 0:
                self.free_blocks -= needed
                sequence.blocks += needed
            budget -= tokens
            plan.append((sequence, tokens, drafts))
            index += 1
        return budget, preempted

    def _preempt_last(self) -> SimulatedSequence:
        """Preempt the youngest running request: it will be computed from the start."""
        sequence = self.running.pop()
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence

    def _plan_waiting(self, budget: int) -> None:
        block_size, counters = self.settings.block_size, self.counters
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            sequence = self.waiting[0]
            prompt = sequence.request.prompt_tokens
            # The last token of a prompt is always computed, and only whole blocks are shared.
            cached = min(sequence.request.cached_tokens, prompt - 1) // block_size * block_size
            tokens = min(sequence.tokens - cached, budget)
            needed = -(-(cached + tokens) // block_size)
            if needed > self.free_blocks:
                return
            self.waiting.popleft()
            self.running.append(sequence)
            self.free_blocks -= needed
            sequence.blocks = needed
            sequence.computed = cached
            if sequence.scheduled is None:
                sequence.scheduled = self.clock
                sequence.cached_tokens = cached
                counters.prefix_cache_queries += prompt
                counters.prefix_cache_hits += cached
                counters.prefix_cache_query_blocks += prompt // block_size
                counters.prefix_cache_hit_blocks += cached // block_size
            budget -= tokens
            self._plan.append((sequence, tokens, _PREFILL))

    def _finish_step(self, end: float) -> None:
        start, self.clock, self.step_end = self.clock, end, None
        counters = self.counters
        computed = generated = steady = 0
        finished = False
        for sequence, tokens, drafts in self._plan:
            if sequence.finished_reason is not None:
                continue
            if drafts == _PREFILL:
                sequence.computed += tokens
                if sequence.computed < sequence.tokens:
                    continue
                if sequence.first_token is None:
                    computed += self._count_first_token(sequence, end)
                else:
                    counters.inter_token.observe(end - (sequence.last_token or end))
                new = 1
            else:
                accepted = self._verify(sequence, drafts) if drafts else 0
                sequence.computed += 1 + accepted
                if sequence.last_token == start:
                    steady += 1
                else:
                    counters.inter_token.observe(end - (sequence.last_token or end))
                # Acceptance counts in full, also where the output is cut at its end.
                new = min(1 + accepted, sequence.length - sequence.generation_tokens)
            sequence.generation_tokens += new
            sequence.last_token = end
            generated += new
            if sequence.generation_tokens >= sequence.length:
                finished = True
                self._release(sequence)
                sequence.finished_reason = sequence.end_reason
            if sequence.listener is not None:
                sequence.listener(sequence, new, sequence.finished_reason)
        if steady:
            counters.inter_token.observe(end - start, steady)
        counters.generation_tokens += generated
        if generated:
            counters.iteration_tokens.observe(computed + generated)
        if finished:
            self._retire(end)

    def _count_first_token(self, sequence: SimulatedSequence, now: float) -> int:
        """Count a prompt that has been read; returns its computed tokens."""
        counters = self.counters
        prompt = sequence.request.prompt_tokens
        computed = prompt - sequence.cached_tokens
        sequence.first_token = now
        counters.ttft.observe(now - sequence.arrival)
        counters.prompt_tokens += prompt
        counters.prompt_tokens_computed += computed
        counters.prompt_tokens_cached += sequence.cached_tokens
        return computed

    def _verify(self, sequence: SimulatedSequence, drafts: int) -> int:
        """Draw how many of ``drafts`` tokens the target keeps, and count them."""
        thresholds = self._thresholds_of(sequence.request.temperature)
        drawn = self._random.random()
        accepted = 0
        while accepted < drafts and drawn < thresholds[accepted]:
            accepted += 1
        counters = self.counters
        counters.drafts += 1
        counters.draft_tokens += drafts
        counters.accepted_tokens += accepted
        positions = counters.accepted_per_position
        for position in range(accepted):
            positions[position] += 1
        sequence.drafts += 1
        sequence.draft_tokens += drafts
        sequence.accepted_tokens += accepted
        sequence.accepted_histogram[accepted] += 1
        if sequence.per_step is not None:
            sequence.per_step.append((accepted, drafts))
        return accepted

    def _likely(self, temperature: float) -> int:
        """Draft tokens that adaptive verification lets through: those more likely than not."""
        if self.speculation is None or not self.speculation.adaptive:
            return self.k
        return max(1, sum(chance > 0.5 for chance in self._thresholds_of(temperature)))

    def _thresholds_of(self, temperature: float) -> tuple[float, ...]:
        # In steps of a hundredth, so that a slow drift does not solve for p at every step.
        factor = round(100 * self.settings.drift.at(self.clock))
        key = (temperature, factor)
        thresholds = self._thresholds.get(key)
        if thresholds is None:
            if len(self._thresholds) >= _CACHED_THRESHOLDS:
                self._thresholds.clear()
            thresholds = self.acceptance.thresholds(temperature, self.k, factor / 100)
            self._thresholds[key] = thresholds
        return thresholds

    def _release(self, sequence: SimulatedSequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _retire(self, now: float) -> None:
        done = [sequence for sequence in self.running if sequence.finished_reason is not None]
        self.running = [sequence for sequence in self.running if sequence.finished_reason is None]
        for sequence in done:
            self.count_finished(sequence, now)
            if self.on_finish is not None:
                self.on_finish(sequence)

    def count_finished(self, sequence: SimulatedSequence, now: float) -> None:
        """Observe a finished sequence in the histograms of requests."""
        counters, request = self.counters, sequence.request
        sequence.finish = now
        scheduled = now if sequence.scheduled is None else sequence.scheduled
        first = now if sequence.first_token is None else sequence.first_token
        last = now if sequence.last_token is None else sequence.last_token
        counters.requests[sequence.finished_reason or "error"] += 1
        counters.e2e.observe(now - sequence.arrival)
        counters.queue_time.observe(scheduled - sequence.arrival)
        counters.prefill_time.observe(first - scheduled)
        counters.decode_time.observe(last - first)
        counters.inference_time.observe(last - scheduled)
        counters.tpot.observe(sequence.tpot or 0.0)
        counters.prompt_length.observe(request.prompt_tokens)
        counters.output_length.observe(sequence.generation_tokens)
        counters.params_max_tokens.observe(request.max_tokens)
        counters.prefill_computed.observe(request.prompt_tokens - sequence.cached_tokens)
        counters.request_preemptions.observe(sequence.preemptions)
        group = sequence.group
        group.unfinished -= 1
        group.longest = max(group.longest, sequence.generation_tokens)
        if not group.unfinished:
            counters.params_n.observe(group.n)
            counters.max_output_length.observe(group.longest)
