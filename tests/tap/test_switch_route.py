"""The switch over HTTP: its token, its limits, and the gauges."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from specwatch_tap import Tap, settings, switch_files
from specwatch_tap.orders import (
    ORDER_FILE,
    PATH,
    STATE_FILE,
    Order,
    SwitchState,
    encode,
    schedule_number,
)
from specwatch_tap.settings import Settings
from specwatch_tap.switch_route import SwitchRoute
from tests.tap.exchanges import DISCONNECT, Visit, answering, parts, scope, visit

TOKEN = "0123456789abcdef"
STATE = SwitchState(server="s", launch_draft_tokens=4, number=3)
ORDER = Order(server="s", number=4, draft_tokens=2, lease=60.0, by="me")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o770)
    switch_files.write(tmp_path / STATE_FILE, encode(STATE))
    return tmp_path


@pytest.fixture
def tap(directory: Path, registry: CollectorRegistry) -> Tap:
    wanted = Settings(switch_directory=directory, switch_token=TOKEN)
    return Tap(answering(b"not ours"), settings=wanted, registry=registry)


def asked(tap: Tap, method: str, body: bytes = b"", *, token: str | None = TOKEN) -> Visit:
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return visit(tap, [*parts(body), DISCONNECT], scope(PATH, method=method, headers=headers))


def error_of(response: Visit, status: int) -> str:
    assert response.head["status"] == status
    return str(json.loads(response.body)["error"])


def test_the_state_as_json(tap: Tap) -> None:
    response = asked(tap, "GET")
    assert response.head["status"] == 200
    assert dict(response.head["headers"])[b"content-type"] == b"application/json"
    assert response.body == encode(STATE)


def test_an_order_is_written_for_the_engine(tap: Tap, directory: Path) -> None:
    assert asked(tap, "PUT", encode(ORDER)).head["status"] == 200
    assert (directory / ORDER_FILE).read_bytes() == encode(ORDER)


def test_without_the_token_nothing_is_said_or_done(tap: Tap, directory: Path) -> None:
    tokens = (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\xff")
    for method, token in itertools.product(("GET", "PUT", "DELETE"), tokens):
        response = asked(tap, method, encode(ORDER), token=token)
        assert error_of(response, 401) == "give the token of the switch"
        assert dict(response.head["headers"])[b"www-authenticate"].startswith(b"Bearer")
    assert not (directory / ORDER_FILE).exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"server": "t"}, "another process"),
        ({"number": 3}, "number 3 was used before"),
        ({"draft_tokens": 5}, "more than the 4"),
    ],
)
def test_an_order_that_would_not_be_followed(
    tap: Tap, directory: Path, changes: dict[str, Any], why: str
) -> None:
    fields = {"server": "s", "number": 4, "draft_tokens": 2, "lease": 60.0}
    response = asked(tap, "PUT", encode(Order(**{**fields, **changes})))
    assert why in error_of(response, 409)
    assert not (directory / ORDER_FILE).exists()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"{}", 400, "missing required field"),
        (b"\xff\xfe", 400, "malformed"),
        (b" " * 5000, 413, "at most 4096 bytes"),
    ],
)
def test_what_is_not_an_order(tap: Tap, body: bytes, status: int, why: str) -> None:
    assert why in error_of(asked(tap, "PUT", body), status)


def test_a_client_that_goes_away(tap: Tap, directory: Path) -> None:
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    response = visit(tap, [DISCONNECT], scope(PATH, method="PUT", headers=headers))
    assert "broke off" in error_of(response, 400)
    assert not (directory / ORDER_FILE).exists()


def test_other_methods(tap: Tap) -> None:
    assert error_of(asked(tap, "DELETE"), 405) == "use GET or PUT"


def test_an_engine_that_wrote_no_state(tap: Tap, directory: Path) -> None:
    (directory / STATE_FILE).unlink()
    assert "does not say its state" in error_of(asked(tap, "GET"), 503)
    assert "does not say its state" in error_of(asked(tap, "PUT", encode(ORDER)), 503)


def test_orders_are_limited(directory: Path, registry: CollectorRegistry) -> None:
    clock = [0.0]
    route = SwitchRoute(directory, TOKEN, registry, monotonic=lambda: clock[0])
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]

    def order() -> int:
        of = scope(PATH, method="PUT", headers=headers)
        response = visit(route.answer, [*parts(encode(ORDER)), DISCONNECT], of)
        return int(response.head["status"])

    assert [order() for _ in range(12)] == [200] * 10 + [429] * 2
    clock[0] += 0.5
    assert [order() for _ in range(3)] == [200, 200, 429]


def test_without_a_token_it_is_a_path_of_vllms(
    directory: Path, registry: CollectorRegistry
) -> None:
    wanted = Settings(switch_directory=directory)
    tap = Tap(answering(b"not ours"), settings=wanted, registry=registry)
    assert asked(tap, "GET").body == b"not ours"


def gauges(registry: CollectorRegistry) -> tuple[float | None, ...]:
    names = ("draft_tokens", "ordered")
    return tuple(registry.get_sample_value(f"specwatch_switch_{name}") for name in names)


def test_the_gauges_are_set_before_a_page_is_read(
    tap: Tap, directory: Path, registry: CollectorRegistry
) -> None:
    def scraped() -> tuple[float | None, ...]:
        visit(tap, [DISCONNECT], scope("/metrics", method="GET"))
        return gauges(registry)

    assert scraped() == (4, 0)
    ordered = SwitchState(server="s", launch_draft_tokens=4, draft_tokens=0, number=4)
    switch_files.write(directory / STATE_FILE, encode(ordered))
    assert scraped() == (0, 1)
    by_batch = SwitchState(server="s", launch_draft_tokens=4, schedule=((1, 2, 3), (3, 9, 0)))
    switch_files.write(directory / STATE_FILE, encode(by_batch))
    assert scraped() == (3, 1)
    number = registry.get_sample_value("specwatch_switch_schedule")
    assert number == schedule_number(by_batch.schedule) > 0
    assert number != schedule_number(((1, 2, 3), (3, 9, 1)))
    stuck = SwitchState(server="s", launch_draft_tokens=4, unavailable="no schedule")
    switch_files.write(directory / STATE_FILE, encode(stuck))
    assert all(math.isnan(value or 0) for value in scraped())
    (directory / STATE_FILE).write_bytes(b"{")
    assert all(math.isnan(value or 0) for value in scraped())


def test_without_a_directory_there_are_no_gauges(registry: CollectorRegistry) -> None:
    Tap(answering(b""), settings=Settings(), registry=registry)
    assert gauges(registry) == (None, None)


def test_the_settings(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    read = settings.from_environment(
        {settings.SWITCH_DIRECTORY: "/run/vllm", settings.SWITCH_TOKEN_FILE: str(token)}
    )
    assert (read.switch_directory, read.switch_token) == (Path("/run/vllm"), TOKEN)
    for environment, why in [
        ({settings.SWITCH_DIRECTORY: "run"}, "write the full path"),
        ({settings.SWITCH_TOKEN_FILE: str(token)}, "set both"),
        (
            {settings.SWITCH_DIRECTORY: "/run", settings.SWITCH_TOKEN_FILE: str(tmp_path / "no")},
            "No such file",
        ),
    ]:
        with pytest.raises(ValueError, match=why):
            settings.from_environment(environment)
    token.write_text("short")
    with pytest.raises(ValueError, match="at least 16 characters"):
        settings.from_environment(
            {settings.SWITCH_DIRECTORY: "/run", settings.SWITCH_TOKEN_FILE: str(token)}
        )
