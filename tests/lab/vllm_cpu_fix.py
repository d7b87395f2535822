"""Mend three things in the CPU build of vLLM 0.32; vLLM loads this plugin in each of its processes.

That build spreads each request's temperature over its draft tokens with a kernel that casts to
int64, so that 0.7 becomes 0 and a sampled request never has a draft token accepted. This plugin
puts a kernel in its place that keeps the type. Builds for GPUs run another kernel and do not need
it.

It also imports everything again in the engine and in the worker, whatever is asked for in
VLLM_WORKER_MULTIPROC_METHOD, and that is most of a start. Builds for GPUs do as that variable says,
and so does this one with the plugin.

Its engine and its worker each keep a processor busy while they wait for one another, and for a
second after that, which is all that a machine with two cores has. With the plugin they sleep.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
LOOK_SECONDS = 0.0002


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative_drafts: torch.Tensor,
    replace_from: float,
    replace_to: float,
    *_launch: Any,
) -> None:
    """Write each request's value once per draft token of it, with one value replaced."""
    first = torch.cat([cumulative_drafts.new_zeros(1), cumulative_drafts[:-1]])
    drafts = (cumulative_drafts - first).to(torch.int64)
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    expanded = torch.repeat_interleave(replaced, drafts)
    output[: expanded.numel()].copy_(expanded)


def _obey_the_start_method() -> None:
    """Set the variable again that the platform overwrites."""
    from vllm.platforms.cpu import CpuPlatform

    asked = os.environ.get(START_METHOD)
    overwriting = CpuPlatform.check_and_update_config

    def obeying(config: Any) -> None:
        overwriting(config)
        os.environ[START_METHOD] = asked or "spawn"

    CpuPlatform.check_and_update_config = staticmethod(obeying)


def _wait_asleep() -> None:
    """Sleep between two looks for a message, where it only lets others go first."""
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = lambda: time.sleep(LOOK_SECONDS)


def register() -> None:
    """Entry point of ``vllm.general_plugins``."""
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    _obey_the_start_method()
    _wait_asleep()
    cpu_triton_utils._expand_kernel_impl = expand
    register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": expand})
