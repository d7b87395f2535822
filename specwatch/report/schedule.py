"""Speculation up to a batch size only: the setting, and the engines that have it."""

from __future__ import annotations

import re

from specwatch.report.estimates import WhatIf
from specwatch.report.model import ModelReport
from specwatch.wording import figures
from specwatch.wording.text import shown

_SINCE = (0, 24)
"""Version of vLLM; with data parallelism it turns the setting off."""
_VLLM = re.compile(r"v?(\d+)\.(\d+)(?=$|[^0-9])")
_UNTAGGED = re.compile(r"v?0\.[01]\.dev")
_LONGEST_VERSION = 40
_TESTED = "tested by vLLM with Eagle, Eagle-3 and DFlash only"
WITH_MTP = (
    "With MTP there are reports of crashes at graph capture (vLLM issue 48494) and of large losses"
    " past the threshold (49548)."
)


def needs(version: str | None) -> str:
    """What the setting needs, as an aside."""
    alone, text = "no data parallelism", version or ""
    match = _VLLM.match(text)
    this = ""
    if match is not None and not _UNTAGGED.match(text):
        if (int(match[1]), int(match[2])) >= _SINCE:
            return f"needs {alone}; {_TESTED}"
        this = f", this is {shown(text, _LONGEST_VERSION)}"
    return f"needs vLLM {_SINCE[0]}.{_SINCE[1]} or later{this}, {alone}; {_TESTED}"


def setting(what_if: WhatIf) -> str:
    """``"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 256, 0]]``."""
    parts = ", ".join(f"[{first}, {last}, {k}]" for first, last, k in what_if.setting)
    return f'"num_speculative_tokens_per_batch_size": [{parts}]'


def stops_the_loss(what_if: WhatIf) -> bool:
    """Whether less is expected to be lost with the setting than is now."""
    return (what_if.now or 0.0) < (what_if.fewer or what_if.without_drafts or 1.0)


def expected(what_if: WhatIf) -> str:
    """The effect of the drafter, which still runs, as half a sentence: measured, or assumed."""
    text, cost = "0 is standby: the drafter still runs", what_if.standby_cost
    now, without_drafts = what_if.now, what_if.without_drafts
    if cost is None or cost.lower is None or cost.upper is None:
        text += "; its cost is not measured here"
        if now is None or without_drafts is None:
            return text
        text += f" (at most {without_drafts:.2f}x of off by the assumed draft cost)"
    else:
        text += (
            f", and takes {cost.value:.2f} times as long as off there"
            f" ({cost.lower:.2f} to {cost.upper:.2f}, measured): {without_drafts:.2f}x of off"
        )
    if what_if.fewer is not None:
        tokens = figures.counted(what_if.setting[-1][2], "draft token")
        text += f"; with {tokens} {what_if.fewer:.2f}x is predicted"
    return f"{text}; now it is {now:.2f}x"


def limit(what_if: WhatIf) -> int:
    """The greatest number of running requests at which it pays; 0 if it is to be off."""
    return what_if.setting[-1][0] - 1 if what_if.setting else 0


def unmeasured(model: ModelReport, what_if: WhatIf) -> list[str]:
    """The loads that keep speculation although its speedup was not measured there."""
    measured = {
        load.load for load in model.loads if load.speedup and load.speedup.basis == "measured"
    }
    ran = {load.load for load in model.loads}
    return [load for load in what_if.loads if load in ran and load not in measured]
