"""The simulated engine: its cores, its traffic, and the true values of what specwatch measures."""

from __future__ import annotations

import dataclasses
import math

from specwatch.domain.model import Histogram, Tally
from specwatch.lab.simulator.counters import SimulatedHistogram
from specwatch.lab.simulator.scheduler import SimulatedScheduler
from specwatch.lab.simulator.sequence import Listener, SimulatedGroup, SimulatedSequence
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedRequest, SimulatedWorkload

EPOCH = 1_795_000_000.0
"""Unix time of virtual time 0, by default."""


class SimulatedEngine:
    """Runs the cores of one server in virtual time; pure and deterministic for a seed.

    ``now`` is the virtual time in seconds; ``process_start`` the Unix time at which the process
    claims to have started; ``incarnation`` counts restarts; ``log`` holds every sequence when
    ``settings.keep_log`` is set, across restarts.
    """

    def __init__(self, settings: SimulatedSettings, process_start: float = EPOCH) -> None:
        self.settings = settings
        self.now = 0.0
        self.epoch = process_start
        self.process_start = process_start
        self.started = 0.0
        self.incarnation = 0
        self.speculation = settings.speculation
        self.acceptance = settings.acceptance
        self.log: list[SimulatedSequence] = []
        self.workload = SimulatedWorkload(settings.traffic, settings.seed, settings.max_model_len)
        self.cores: list[SimulatedScheduler] = []
        self._start_cores()

    @property
    def running(self) -> int:
        """Requests in the batches of all cores."""
        return sum(len(core.running) for core in self.cores)

    @property
    def waiting(self) -> int:
        """Requests in the queues of all cores."""
        return sum(len(core.waiting) for core in self.cores)

    @property
    def next_event(self) -> float:
        """Virtual time of the next arrival or end of a step; infinite when none will come."""
        ends = [core.step_end for core in self.cores]
        return min([self.workload.next_arrival, *(end for end in ends if end is not None)])

    def advance(self, until: float) -> None:
        """Run to virtual time ``until`` (seconds); a time in the past changes nothing."""
        while self.workload.next_arrival <= until:
            arrival = self.workload.next_arrival
            self._advance_cores(arrival)
            self.now = max(self.now, arrival)
            self.submit(self.workload.arrive())
        self._advance_cores(until)
        self.now = max(self.now, until)

    def submit(
        self, request: SimulatedRequest, listener: Listener | None = None
    ) -> SimulatedSequence:
        """Queue a request that arrives now. ValueError when it cannot fit the model."""
        return self.submit_parallel(request, 1, listener)[0]

    def submit_parallel(
        self, request: SimulatedRequest, n: int, listener: Listener | None = None
    ) -> list[SimulatedSequence]:
        """Queue a request for ``n`` answers, one sequence for each."""
        if request.prompt_tokens < 1 or request.max_tokens < 1 or n < 1:
            raise ValueError(f"{request}: prompt, output and n must be at least 1")
        if request.prompt_tokens >= self.settings.max_model_len:
            raise ValueError(
                f"{request}: the prompt leaves no room in a context of"
                f" {self.settings.max_model_len} tokens"
            )
        group = SimulatedGroup(n, n)
        core = min(self.cores, key=lambda core: core.load)
        return [self._queue(request, group, core, self.now, listener) for _ in range(n)]

    def abort(self, sequence: SimulatedSequence, counted: bool = False) -> None:
        """End a sequence early.

        vLLM forgets a request whose client went away without counting it as finished, and counts
        one that the engine itself gives up: ``counted``.
        """
        if sequence.finished_reason is not None:
            return
        sequence.finished_reason = "abort"
        sequence.finish = self.now
        if sequence.incarnation == self.incarnation:
            core = self.cores[sequence.engine]
            core.abort(sequence)
            if counted:
                core.count_finished(sequence, self.now)
        if sequence.listener is not None:
            sequence.listener(sequence, 0, "abort")
        if sequence.incarnation == self.incarnation and not counted:
            sequence.group.unfinished -= 1

    def restart(
        self,
        speculation: bool | SimulatedSpeculation | None = None,
        downtime: float = 0.0,
        process_start: float | None = None,
    ) -> None:
        """End the process and start a new one: counters from zero, requests under way lost.

        ``speculation`` None leaves it as it is, True means as configured. Requests that would have
        arrived during ``downtime`` (virtual seconds) are refused.
        """
        self.set_speculation(speculation)
        for core in self.cores:
            for sequence in [*core.running, *core.waiting]:
                self.abort(sequence)
        self.now += downtime
        self.started = self.now
        self.process_start = self.epoch + self.now if process_start is None else process_start
        self.incarnation += 1
        if downtime:
            self.workload.start(self.now)
        self._start_cores()

    def set_speculation(self, speculation: bool | SimulatedSpeculation | None) -> None:
        """Choose what the next process speculates with; takes effect at :meth:`restart`."""
        if isinstance(speculation, SimulatedSpeculation):
            self.speculation = speculation
        elif speculation is True:
            if self.settings.speculation is None:
                raise ValueError("speculation cannot be switched on: none is configured")
            self.speculation = self.settings.speculation
        elif speculation is False:
            self.speculation = None

    def set_acceptance_scale(self, scale: float) -> None:
        """Multiply the configured acceptance rates by ``scale`` from now on."""
        self.acceptance = dataclasses.replace(self.settings.acceptance, scale=scale)
        for core in self.cores:
            core.set_acceptance(self.acceptance)

    def true_step_cost(self, batch: int) -> float:
        """o(b): a speculative step of ``batch`` decoding requests, in plain steps."""
        speculation, costs = self._configured(), self.settings.costs
        draft = costs.draft(batch, speculation.k) * speculation.draft_cost
        verify = costs.step(batch, batch * (speculation.k + 1))
        return (verify + draft) / costs.plain(batch)

    def true_acceptance_rate(self, temperature: float) -> float:
        """Accepted over draft tokens at ``temperature``, now."""
        return (self.true_acceptance_length(temperature) - 1.0) / self._configured().k

    def true_acceptance_length(self, temperature: float) -> float:
        """Tau at ``temperature``, now: tokens per speculative step."""
        factor = self.settings.drift.at(self.now)
        return self.acceptance.length(temperature, self._configured().k, factor)

    def true_speedup(self, temperature: float, batch: int) -> float:
        """tau(T) / o(b): below 1, speculation loses."""
        return self.true_acceptance_length(temperature) / self.true_step_cost(batch)

    def true_pace(self, batch: int, draft_tokens: int | None = None) -> float:
        """Mean seconds per token of requests, now, while so many decode and no prompt is read; with
        so many draft tokens ordered, or as launched."""
        speculation, costs = self._configured(), self.settings.costs
        k = speculation.k if draft_tokens is None else draft_tokens
        step = costs.step(batch, batch * (k + 1))
        step += costs.draft(batch, speculation.passes(k)) * speculation.draft_cost
        factor, temperatures = self.settings.drift.at(self.now), self.settings.traffic.temperatures
        # A request takes as many more steps as each yields fewer tokens.
        steps = (
            weight / self.acceptance.length(temperature, k, factor)
            for temperature, weight in temperatures
        )
        return step * sum(steps) / sum(weight for _, weight in temperatures)

    def tally(self) -> Tally:
        """All that was counted since the process started, over all cores."""
        counters = [core.counters for core in self.cores]
        speculating = self.speculation is not None

        def total(name: str) -> int:
            return sum(getattr(counter, name) for counter in counters)

        def merged(name: str) -> Histogram:
            parts: list[SimulatedHistogram] = [getattr(counter, name) for counter in counters]
            counts = tuple(map(sum, zip(*(part.counts for part in parts), strict=True)))
            return Histogram(parts[0].bounds, counts, math.fsum(part.sum for part in parts))

        positions = zip(*(counter.accepted_per_position for counter in counters), strict=True)
        return Tally(
            drafts=total("drafts") if speculating else None,
            draft_tokens=total("draft_tokens") if speculating else None,
            accepted_tokens=total("accepted_tokens") if speculating else None,
            accepted_per_position=tuple(map(sum, positions)) if speculating else None,
            prompt_tokens=total("prompt_tokens"),
            generation_tokens=total("generation_tokens"),
            preemptions=total("preemptions"),
            prefix_cache_queries=total("prefix_cache_queries"),
            prefix_cache_hits=total("prefix_cache_hits"),
            requests={
                reason: sum(counter.requests[reason] for counter in counters)
                for reason in counters[0].requests
            },
            ttft=merged("ttft"),
            tpot=merged("tpot"),
            inter_token=merged("inter_token"),
            e2e=merged("e2e"),
            output_length=merged("output_length"),
        )

    def _configured(self) -> SimulatedSpeculation:
        speculation = self.speculation or self.settings.speculation
        if speculation is None:
            raise ValueError("no speculation is configured, so it has no cost and no speedup")
        return speculation

    def _start_cores(self) -> None:
        self.cores = [
            SimulatedScheduler(self.settings, self.speculation, index, self.incarnation, self.now)
            for index in range(self.settings.engines)
        ]
        for core in self.cores:
            core.set_acceptance(self.acceptance)
        for index in range(self.settings.traffic.concurrency):
            core = self.cores[index % len(self.cores)]
            core.on_finish = self._replace
            self._queue(self.workload.draw(), SimulatedGroup(), core, self.now, None, closed=True)

    def _advance_cores(self, until: float) -> None:
        for core in self.cores:
            core.advance(until)

    def _replace(self, finished: SimulatedSequence) -> None:
        """The closed loop: a client sends its next request as soon as it has the answer."""
        if finished.closed:
            core = self.cores[finished.engine]
            self._queue(self.workload.draw(), SimulatedGroup(), core, core.clock, None, closed=True)

    def _queue(
        self,
        request: SimulatedRequest,
        group: SimulatedGroup,
        core: SimulatedScheduler,
        arrival: float,
        listener: Listener | None,
        closed: bool = False,
    ) -> SimulatedSequence:
        capped = min(request.max_tokens, self.settings.max_model_len - request.prompt_tokens)
        stops = request.stop_after is not None and request.stop_after <= capped
        sequence = SimulatedSequence(
            request=request,
            engine=core.index,
            incarnation=self.incarnation,
            arrival=arrival,
            length=max(1, request.stop_after) if stops and request.stop_after else capped,
            end_reason="stop" if stops else "length",
            group=group,
            listener=listener,
            closed=closed,
            accepted_histogram=[0] * (core.k + 1),
            per_step=[] if self.settings.record == "detailed" else None,
        )
        if self.settings.keep_log:
            self.log.append(sequence)
        core.submit(sequence)
        return sequence
