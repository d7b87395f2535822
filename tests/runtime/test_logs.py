"""Where logs go and how they look."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import structlog

from specwatch.runtime import logs

ESCAPE = "\x1b"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Logging is the process's: leave no trace of ours for the tests that follow."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    noisy = {name: logging.getLogger(name).level for name in logs._NOISY}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name, before in noisy.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_an_event_name_its_keys_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    structlog.get_logger("specwatch.test").info("scrape_failed", target="chat", seconds=0.5)
    (line,) = lines(out)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "info", "event": "scrape_failed", "target": "chat", "seconds": 0.5}
    assert capsys.readouterr() == ("", "")


def test_an_event_of_thousands_of_targets_is_some_lines_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last line says how many were left out; events of other loggers all appear."""
    out, now = io.StringIO(), [600.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    logs.configure("info", "json", out)
    scraper, guard = map(structlog.get_logger, ("specwatch.daemon.scraper", "specwatch.guard"))
    for target in range(2000):
        scraper.warning("scrape_failed", target=target)
        guard.warning("guard_step", target=target)
    scraper.warning("engine_restarted", target=1)
    now[0] = 660.0
    scraper.warning("scrape_failed", target=1)
    written = lines(out)
    failed = [line for line in written if line["event"] == "scrape_failed"]
    assert [line["target"] for line in failed] == [*range(50), 1]
    assert failed[49]["others"] == "left out until the next minute"
    assert failed[50]["left_out_before"] == 1950
    assert len(written) == 51 + 2000 + 1


def test_the_level_holds_for_ours_and_for_libraries() -> None:
    out = io.StringIO()
    logs.configure("warning", "json", out)
    structlog.get_logger("specwatch.test").info("quiet")
    logging.getLogger("library").info("quiet")
    structlog.get_logger("specwatch.test").warning("loud")
    logging.getLogger("library").warning("loud")
    assert [line["event"] for line in lines(out)] == ["loud", "loud"]


@pytest.mark.parametrize("name", ["uvicorn.error", "apscheduler.scheduler", "sqlalchemy.engine"])
def test_chatty_libraries_warn_and_no_more_and_heed_a_higher_level(name: str) -> None:
    out = io.StringIO()
    logging.getLogger(name).setLevel(logging.NOTSET)  # a server of another test may have set it
    logs.configure("debug", "json", out)
    logging.getLogger(name).info("started a job")
    logging.getLogger(name).warning("missed a job")
    logs.configure("error", "json", out)
    logging.getLogger(name).warning("missed a job")
    assert [line["event"] for line in lines(out)] == ["missed a job"]


def test_logs_and_warnings_of_libraries_go_the_same_way() -> None:
    out = io.StringIO()
    logs.configure("info", "json", out)
    logging.getLogger("library").error("cannot %s", "connect")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    first, second = lines(out)
    assert (first["event"], first["level"]) == ("cannot connect", "error")
    assert first["logger"] == "library"
    assert "old" in second["event"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_an_exception_keeps_its_traceback_and_not_its_local_variables(
    style: logs.LogFormat,
) -> None:
    """Local variables of a request may be secrets."""

    def failing() -> None:
        password = "hunter2"[::1]
        raise ValueError(f"of {len(password)} characters")

    out = Terminal()
    logs.configure("info", style, out)
    try:
        failing()
    except ValueError:
        structlog.get_logger("specwatch.test").exception("turn_failed", target="chat")
    output = out.getvalue()
    assert "turn_failed" in output
    assert "Traceback" in output
    assert "ValueError: of 7 characters" in output
    assert "hunter2'" not in output


@pytest.mark.parametrize(
    ("stream", "no_color", "coloured"),
    [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)],
)
def test_colours_are_for_terminals_whose_owner_wants_them(
    stream: type[io.StringIO], no_color: bool, coloured: bool
) -> None:
    out = stream()
    logs.configure("info", "console", out, no_color=no_color)
    structlog.get_logger("specwatch.test").warning("scrape_failed", target="chat")
    assert (ESCAPE in out.getvalue()) is coloured
    assert "scrape_failed" in out.getvalue()
    assert "chat" in out.getvalue()


@pytest.mark.parametrize(("stream", "is_json"), [(Terminal, False), (io.StringIO, True)])
def test_auto_is_for_people_on_a_terminal_and_json_elsewhere(
    stream: type[io.StringIO], is_json: bool
) -> None:
    out = stream()
    logs.configure("info", "auto", out, no_color=True)
    structlog.get_logger("specwatch.test").info("started")
    assert out.getvalue().startswith("{") is is_json


def test_names_of_servers_cannot_command_a_terminal() -> None:
    out = Terminal()
    logs.configure("info", "console", out, no_color=True)
    name = f"{ESCAPE}[31m\u202e\nfake line"
    log = structlog.get_logger("specwatch.test")
    log.info("models_changed", target=name, models={name: "on"}, problems=[name])
    logging.getLogger("library").warning(name)
    assert ESCAPE not in out.getvalue()
    assert "\u202e" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2


def test_configuring_again_takes_the_place_of_the_first() -> None:
    """Re-reading the configuration must not double every line."""
    first, second = io.StringIO(), io.StringIO()
    log = structlog.get_logger("specwatch.test")
    logs.configure("info", "json", first)
    log.info("one")
    logs.configure("warning", "json", second)
    log.info("two")
    log.warning("three")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["three"]


def spoil_reader(out: IO[str]) -> None:
    read, write = os.pipe()
    os.dup2(write, out.fileno())
    os.close(read)
    os.close(write)


def spoil_by(path: str, flags: int) -> Callable[[IO[str]], None]:
    def spoil(out: IO[str]) -> None:
        other = os.open(path, flags)
        os.dup2(other, out.fileno())
        os.close(other)

    return spoil


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize(
    "spoil",
    [
        spoil_reader,
        spoil_by("/dev/full", os.O_WRONLY),
        spoil_by("/dev/null", os.O_RDONLY),
        lambda out: out.close(),
    ],
    ids=["nobody reads", "full", "not for writing", "closed"],
)
def test_a_standard_error_that_breaks_loses_lines_and_nothing_else(
    style: logs.LogFormat,
    spoil: Callable[[IO[str]], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = (tmp_path / "log").open("w", buffering=1)
    logs.configure("info", style, out)
    spoil(out)
    for _ in range(3):
        structlog.get_logger("x").error("e", name="\u6a21")
    with contextlib.suppress(OSError):
        out.close()
    assert capsys.readouterr() == ("", "")


def test_a_process_started_without_standard_error_logs_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    logs.configure("info", "auto")
    structlog.get_logger("x").error("e")


def test_a_terminal_without_unicode_gets_names_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's standard error escapes what its encoding cannot write."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "ascii", "backslashreplace", write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure("info", "console")
    structlog.get_logger("x").error("e", name="\u6a21")
    assert b"\\u6a21" in written.getvalue()
