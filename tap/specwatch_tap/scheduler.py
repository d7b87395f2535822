"""vLLM's own scheduler, with the switch: ``--scheduler-cls specwatch_tap.Scheduler``.

From vLLM 0.24 on, the scheduler looks up the number of draft tokens in ``dynamic_sd_lookup`` by the
number of scheduled requests at every step, if ``num_speculative_tokens_per_batch_size`` is in
the speculative configuration (``vllm/v1/core/sched/scheduler.py``). The switch replaces that list.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specwatch_tap import settings
from specwatch_tap.orders import UNSWITCHABLE, Schedule, SwitchState
from specwatch_tap.switch import Switch, lookup_of, schedule_of

NO_SPECULATION = "vLLM runs without speculation"
NO_LOOKUP = "this vLLM has no schedule of draft tokens (0.24 and later have)"
DATA_PARALLEL = "data-parallel ranks that draft unlike numbers of tokens wait for each other"
NO_SCHEDULE = (
    "vLLM has no num_speculative_tokens_per_batch_size in its speculative configuration: it was"
    " launched without it (`specwatch tap flags --switch` prints it), or it removed it, as with"
    " data parallelism: see its log"
)
_log = logging.getLogger("specwatch_tap")


class Scheduler:
    """Makes the scheduler that vLLM would make by itself, and follows orders on it.

    Without ``SPECWATCH_SWITCH_DIRECTORY`` in the environment it only makes the scheduler.
    """

    def __new__(cls, *args: Any, vllm_config: Any, **options: Any) -> Any:
        """A scheduler of vLLM, not an instance of this class."""
        own = copy.copy(vllm_config.scheduler_config)
        own.scheduler_cls = None
        scheduler = own.get_scheduler_cls()(*args, vllm_config=vllm_config, **options)
        try:
            directory = settings.from_environment(os.environ).switch_directory
            if directory is not None:
                _start(directory, scheduler, vllm_config)
        except Exception:
            _log.exception("the switch failed to start; vLLM goes on without it")
        return scheduler


def _start(directory: Path, scheduler: Any, vllm_config: Any) -> None:
    Switch(directory, _launch(scheduler, vllm_config), _lookup_of(scheduler)).start()


def _lookup_of(scheduler: Any) -> Any:
    """A function that gives a scheduler a number of draft tokens, or a schedule of them."""
    launch: list[int] | None = getattr(scheduler, "dynamic_sd_lookup", None)

    def use(ordered: int | Schedule | None) -> None:
        if launch is None:
            return
        if isinstance(ordered, tuple):
            scheduler.dynamic_sd_lookup = lookup_of(ordered, len(launch))
        else:
            scheduler.dynamic_sd_lookup = launch if ordered is None else [ordered] * len(launch)

    return use


def _launch(scheduler: Any, vllm_config: Any) -> SwitchState:
    speculation = vllm_config.speculative_config
    return launch_state(
        None if speculation is None else speculation.num_speculative_tokens or 0,
        getattr(scheduler, "dynamic_sd_lookup", None),
        has_lookup=hasattr(scheduler, "dynamic_sd_lookup"),
        data_parallel_size=vllm_config.parallel_config.data_parallel_size,
        method=_unswitchable(vllm_config),
    )


def launch_state(
    draft_tokens: int | None,
    lookup: Sequence[int] | None,
    *,
    has_lookup: bool,
    data_parallel_size: int,
    method: str | None = None,
) -> SwitchState:
    """The state of a server's switch at launch.

    ``draft_tokens`` is None without speculation, ``lookup`` has the draft tokens by number of
    requests, and ``has_lookup`` is whether this version of vLLM can have one. ``method`` is that of
    the speculation, if vLLM cannot change k with it.
    """
    unavailable = ""
    if draft_tokens is None:
        unavailable = NO_SPECULATION
    elif data_parallel_size > 1:
        unavailable = DATA_PARALLEL
    elif not has_lookup:
        unavailable = NO_LOOKUP
    elif lookup is None:
        unavailable = NO_SCHEDULE
    elif method is not None:
        unavailable = f"vLLM fails when the number of draft tokens changes with {method}"
    return SwitchState(
        server="",
        launch_draft_tokens=draft_tokens or 0,
        launch_schedule=schedule_of(lookup) if lookup else (),
        unavailable=unavailable,
    )


def _unswitchable(vllm_config: Any) -> str | None:
    """The method of speculation, if vLLM asserts that k never changes; None for the others."""
    speculation = vllm_config.speculative_config
    method = getattr(speculation, "method", None)
    if getattr(vllm_config, "diffusion_config", None) is not None:
        return "a diffusion model"
    if getattr(speculation, "parallel_drafting", False):
        return "parallel drafting"
    return method if method in UNSWITCHABLE else None
