"""The switch in the API server: its gauges, and orders over HTTP for those with the token."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from specwatch_tap import switch_files
from specwatch_tap.exchange import Receive, Send
from specwatch_tap.families import SWITCH
from specwatch_tap.orders import (
    LARGEST,
    ORDER_FILE,
    STATE_FILE,
    Order,
    SwitchState,
    decode,
    encode,
    objection,
    schedule_number,
)
from specwatch_tap.server_facts import Scope

_MOST_AT_ONCE, _A_SECOND = 10, 4.0
"""Orders that are taken at once, and afterwards each second."""
_BODY_SECONDS = 5.0
_log = logging.getLogger("specwatch_tap")


class _Refused(Exception):
    """An answer other than 200: its status, why, and a header field."""

    def __init__(self, status: int, why: str, field: tuple[bytes, bytes] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.fields = [] if field is None else [field]


class SwitchRoute:
    """Answers ``GET`` with the state, and takes an order with ``PUT``.

    ``directory`` has the documents of the engine in the same container; without a ``token`` only
    the gauges are kept.
    """

    def __init__(
        self,
        directory: Path,
        token: str | None,
        registry: CollectorRegistry,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serves = token is not None
        """Whether orders are taken over HTTP."""
        self._directory = directory
        self._expected = f"Bearer {token}".encode()
        self._monotonic = monotonic
        self._credit = float(_MOST_AT_ONCE)
        self._credit_at = monotonic()
        self._logged_at = -math.inf
        self._gauges = {
            family.quantity: Gauge(
                family.exposed, family.help, registry=registry, multiprocess_mode="mostrecent"
            )
            for family in SWITCH
        }

    def refresh(self) -> None:
        """Set the gauges: NaN where the server follows no order, or does not say."""
        try:
            state = self._state()
        except Exception:  # the page is vLLM's own, and must not fail for us
            state = None
        if state is None or state.unavailable:
            values = dict.fromkeys(self._gauges, math.nan)
        else:
            values = {
                "switch_draft_tokens": state.draft_tokens_now,
                "switch_ordered": state.ordered is not None,
                "switch_schedule": schedule_number(state.schedule),
            }
        for quantity, value in values.items():
            self._gauges[quantity].set(value)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        fields: list[tuple[bytes, bytes]] = []
        try:
            self._authorize(scope)
            if scope["method"] == "PUT":
                self._order(await _body(receive))
            elif scope["method"] != "GET":
                raise _Refused(405, "use GET or PUT", (b"allow", b"GET, PUT"))
            status, body = 200, encode(self._state())
        except _Refused as refused:
            status, fields = refused.status, refused.fields
            body = json.dumps({"error": str(refused)}).encode()
        except (OSError, ValueError) as error:
            status = 503
            body = json.dumps({"error": f"the engine does not say its state: {error}"}).encode()
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", b"application/json"), length, *fields]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _authorize(self, scope: Scope) -> None:
        given = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(given, self._expected):
            now = self._monotonic()
            if now - self._logged_at >= 60.0:
                self._logged_at = now
                _log.warning("a request to the switch had a wrong token, or none")
            challenge = (b"www-authenticate", b'Bearer realm="specwatch"')
            raise _Refused(401, "give the token of the switch", challenge)

    def _order(self, body: bytes) -> None:
        now = self._monotonic()
        earned = (now - self._credit_at) * _A_SECOND
        self._credit, self._credit_at = min(self._credit + earned, _MOST_AT_ONCE), now
        if self._credit < 1:
            raise _Refused(429, "too many orders", (b"retry-after", b"1"))
        self._credit -= 1
        try:
            order = decode(body, Order)
        except ValueError as error:
            raise _Refused(400, str(error)) from None
        refused = objection(order, self._state())
        if refused:
            raise _Refused(409, refused)
        switch_files.write(self._directory / ORDER_FILE, encode(order))

    def _state(self) -> SwitchState:
        return decode(switch_files.read(self._directory / STATE_FILE), SwitchState)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Refused(400, "the request broke off")
                parts.append(message.get("body", b""))
                if sum(map(len, parts)) > LARGEST:
                    raise _Refused(413, f"an order has at most {LARGEST} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise _Refused(408, f"the order did not come within {_BODY_SECONDS:g} s") from None
