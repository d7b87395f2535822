"""The switch: orders that change the number of draft tokens of a running vLLM.

Orders and the state of the server are small JSON documents: files in a directory that vLLM and
specwatch share, or the bodies of requests to :data:`PATH` of its API server.

An order is for one process, has a number greater than all before it, and ends with its lease. So
neither one for an earlier process nor one that is sent again has an effect, and a server whose
orders are no longer renewed returns to how it was launched.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

PATH = "/specwatch/switch"
DIRECTORY_VARIABLE = "SPECWATCH_SWITCH_DIRECTORY"
"""The environment variable of vLLM with the directory."""
ORDER_FILE = "order.json"
STATE_FILE = "state.json"
LOCK_FILE = "lock"
UNSWITCHABLE = frozenset(
    {
        "suffix",
        "medusa",
        "ngram_gpu",
        "extract_hidden_states",
        "custom_class",
        "mlp_speculator",
    }
)
"""Methods of speculation with which the engine ends when k changes, or ignores it.

Source: ``propose_draft_token_ids`` in ``vllm/v1/worker/gpu_model_runner.py`` of vLLM 0.24 to 0.33.
"""
LARGEST = 4096
"""Bytes of a document, at most."""
MOST_RANGES = 64
"""Ranges of a schedule."""
LARGEST_JUMP = 1000
"""How much greater the number of an order may be than that of the last one."""
LONGEST_LEASE = 86_400.0
"""Seconds that an order may hold."""

_Requests = Annotated[int, Meta(ge=1, le=1 << 20)]
_DraftTokens = Annotated[int, Meta(ge=0, le=1024)]
Schedule = Annotated[
    tuple[tuple[_Requests, _Requests, _DraftTokens], ...], Meta(max_length=MOST_RANGES)
]
"""Draft tokens by number of scheduled requests: first and last number, and k. The first range
begins at 1, each other one after the one before; the last one has all larger numbers too."""

Document = TypeVar("Document", "Order", "SwitchState")


class Order(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A number of draft tokens a step, or a schedule of them; without both, what the server was
    launched with. Raises ValueError for both, or a schedule with gaps.

    ``server`` and ``number`` are explained above; ``lease`` is in seconds from when the server
    reads the order, ``by`` says who gave it. Earlier servers know no ``schedule``, which is left
    out where it is empty.
    """

    server: Annotated[str, Meta(max_length=64)]
    number: Annotated[int, Meta(ge=1, lt=2**53)]
    draft_tokens: _DraftTokens | None
    schedule: Schedule = ()
    lease: Annotated[float, Meta(gt=0, le=LONGEST_LEASE)]
    by: Annotated[str, Meta(max_length=200)] = ""

    def __post_init__(self) -> None:
        if self.schedule and self.draft_tokens is not None:
            raise ValueError("it has draft_tokens and a schedule: expected one of them")
        check_schedule(self.schedule)


class SwitchState(Struct, frozen=True, kw_only=True):
    """What a server says of its switch. ``server`` identifies its process."""

    server: str
    launch_draft_tokens: int
    """The k of the launch, the largest of a schedule; 0 without speculation."""
    launch_schedule: tuple[tuple[int, int], ...] = ()
    """By ascending number of scheduled requests, from which on the launch has how many tokens."""
    draft_tokens: int | None = None
    """The number that is ordered; None in the launch mode, and with a schedule."""
    schedule: Schedule = ()
    """The schedule that is ordered, as in an order; empty without one."""
    schedules: bool = False
    """Whether it follows orders of schedules."""
    number: int = 0
    """Number of the last order that was read, followed or not."""
    by: str = ""
    """Who gave the order that is followed, also one for the launch mode; empty once it ended."""
    until: float | None = None
    """Unix time at which the order ends."""
    refused: str = ""
    """Why the last order is not followed; empty if it is, or its time is over."""
    unavailable: str = ""
    """Why this server follows no order; empty if it does."""

    @property
    def ordered(self) -> int | Schedule | None:
        """The number of draft tokens, or the schedule, that is ordered; None in the launch mode."""
        return self.schedule or self.draft_tokens

    @property
    def draft_tokens_now(self) -> int:
        """The k in use, the largest one of a schedule."""
        if self.schedule:
            return max(k for *_, k in self.schedule)
        return self.launch_draft_tokens if self.draft_tokens is None else self.draft_tokens


def check_schedule(schedule: Schedule) -> None:
    """Raise ValueError for ranges that do not follow each other from 1 on."""
    for (_, before, _), (first, last, k) in pairwise(((0, 0, 0), *schedule)):
        if first != before + 1 or last < first:
            raise ValueError(
                f"the range {[first, last, k]} of the schedule: expected one from {before + 1} on"
            )


def schedule_number(schedule: Schedule) -> int:
    """A number from 1 that identifies a schedule, as the server's page shows it; 0 without one."""
    return zlib.crc32(msgspec.json.encode(schedule)) or 1 if schedule else 0


def encode(document: Order | SwitchState) -> bytes:
    """The JSON of a document."""
    return msgspec.json.encode(document)


def decode(data: bytes, kind: type[Document]) -> Document:
    """A document from JSON. Raises ValueError, with what was expected, for anything else."""
    if len(data) > LARGEST:
        raise ValueError(f"longer than {LARGEST} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def objection(order: Order, state: SwitchState) -> str:
    """Why a server in this state does not follow an order; empty if it does."""
    if state.unavailable:
        return state.unavailable
    if order.server != state.server:
        return "it is for another process of the server: read the state again"
    if order.number <= state.number:
        return f"its number {order.number} was used before: read the state again"
    if order.number > state.number + LARGEST_JUMP:
        return (
            f"its number {order.number} is more than {LARGEST_JUMP} greater than the last,"
            f" {state.number}: no number would be left for later orders"
        )
    if order.schedule and not state.schedules:
        return "the tap in its environment knows no schedules: install the one of this version"
    most = max((k for *_, k in order.schedule), default=order.draft_tokens or 0)
    if most > state.launch_draft_tokens:
        return (
            f"{most} draft tokens are more than the {state.launch_draft_tokens} that the server was"
            " launched with"
        )
    return ""
