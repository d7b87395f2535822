"""An experiment on live traffic of the real vLLM against a bench of servers in turns, while the
load changes tenfold.

Needs the lab (``make lab``), a quiet machine, and about 55 minutes. What is compared: the launch
with 4 draft tokens, standby, and a second server without speculation.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Figure
from tests.e2e.processes import DaemonProcess, specwatch
from tests.e2e.switching import Switched, Traffic, order, prepare, seconds_per_token
from tests.lab import vllm_install as lab
from tests.lab.vllm_server import VllmServer, speculation_flags

_DRAFTS = ("draft-good", "draft-bad")
_CLIENTS = {"1": 1, "9-16": 10}
"""By load bin."""
_TOKENS = 64
_EXPERIMENT, _STANDBY = 10 * 60.0, 3 * 60.0
"""Seconds of the experiment, and of standby at each load."""
_LOAD_LASTS = (60.0, 150.0)
"""Seconds for which a load lasts, at least and at most."""
_TURNS, _TURN = 12, 4.0
"""Of the bench at each load, and the seconds of one."""
_T = 2.2
"""Student's t of 11 degrees of freedom, 95 %."""


def run() -> list[Figure]:
    """Speedups by load, by the experiment and by the bench."""
    if not lab.is_installed():
        raise RuntimeError(f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it")
    lab.add_tap(lab.vllm_folder())
    return [figure for draft in _DRAFTS for figure in _of_draft(draft)]


def _of_draft(draft: str) -> list[Figure]:
    models = lab.tiny_models(lab.vllm_folder())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags, environment = prepare(folder, speculation_flags(models, draft, 4))
        with (
            VllmServer(
                lab.vllm_folder(), models, folder / "on.log", *flags, environment=environment
            ) as on,
            VllmServer(lab.vllm_folder(), models, folder / "off.log") as off,
        ):
            for server in (on, off):
                server.start()
            for server in (on, off):
                server.wait_healthy()
                _load(server, 4, 5.0)
            found = _experiment(Switched(on, folder / "switch"), off, folder)
            _say(json.dumps(found))
            return _compare(draft, found, _bench(on, off))


def _experiment(switched: Switched, off: VllmServer, folder: Path) -> dict[str, Any]:
    """Results of an experiment, of which the standby cost is measured as the manual says."""
    database = f"sqlite:///{folder}/specwatch.db"
    # While it tunes, no arm is given up that certainly loses, so that the interval narrows.
    experiment = {
        "arms": [0],
        "block": "8s",
        "share": "50%",
        "regret": "100%",
        "tune": "observe",
    }
    config = {"targets": [switched.target | {"experiments": experiment}], "database": database}
    rng = random.Random(0)
    with DaemonProcess.configured(folder / "daemon", database, config) as daemon:
        ends = time.monotonic() + _EXPERIMENT
        while time.monotonic() < ends:
            for clients in _CLIENTS.values():
                _load(switched.server, clients, rng.uniform(*_LOAD_LASTS))
            _say(f"{daemon.status()['targets'][0]['experiment']['episodes']} episodes")
        config_file = str(folder / "daemon" / "specwatch.yml")
        _command("experiment", "stop", "chat", "--reason", "a bench", "--config", config_file)
        for clients in _CLIENTS.values():
            _command("switch", "chat", "--k", "0", "--lease", "10m", "--config", config_file)
            _load(switched.server, clients, _STANDBY)
        _command("switch", "chat", "--launch", "--config", config_file)
        _command(
            "calibrate",
            "--off",
            off.url,
            "--target",
            "chat",
            "--config",
            config_file,
            "--concurrency",
            ",".join(map(str, _CLIENTS.values())),
            "--duration",
            "60s",
            "--temperature",
            "0",
            "--unsteady",
        )
        daemon.stop()
    shown = _command("experiment", "results", "chat", "--json", "--config", config_file)
    results: dict[str, Any] = json.loads(shown)
    return results


def _bench(on: VllmServer, off: VllmServer) -> dict[str, dict[str, tuple[float, float]]]:
    """By load and variant: log time per token over that of the launch, and its half width at 95 %;
    one server has work at a time, in turns whose order changes."""

    def launch(clients: int) -> float:
        return _pace(on, clients)

    def standby(clients: int) -> float:
        order(on, 0)
        try:
            return _pace(on, clients)
        finally:
            order(on, None)

    variants: dict[str, Callable[[int], float]] = {
        "launch": launch,
        "standby": standby,
        "off": lambda clients: _pace(off, clients),
    }
    ratios: dict[str, dict[str, list[float]]] = {
        load: {name: [] for name in variants if name != "launch"} for load in _CLIENTS
    }
    names = list(variants)
    for number in range(_TURNS):
        _say(f"turn {number + 1} of {_TURNS}")
        for load, clients in _CLIENTS.items():
            paces = {name: variants[name](clients) for name in names}
            for name, values in ratios[load].items():
                values.append(paces[name] - paces["launch"])
        names = [*names[1:], names[0]] if number % 3 else names[::-1]
    return {
        load: {
            name: (statistics.fmean(v), _T * statistics.stdev(v) / math.sqrt(len(v)))
            for name, v in of_load.items()
        }
        for load, of_load in ratios.items()
    }


def _compare(
    draft: str,
    found: Mapping[str, Any],
    bench: Mapping[str, Mapping[str, tuple[float, float]]],
) -> list[Figure]:
    """Speedups of the launch over standby and over off."""
    figures = []
    by_load = {load: arms for load, arms in found["loads"].items() if load in _CLIENTS}
    for load, (arm,) in by_load.items():
        standby = arm["speedup"] and {
            "value": 1 / arm["speedup"]["value"],
            "lower": 1 / arm["speedup"]["upper"],
            "upper": 1 / arm["speedup"]["lower"],
        }
        of_launch = [one for one in found["against_off"]["loads"][load] if one["arm"] == "launch"]
        measured = {"standby": standby, "off": of_launch[0]["speedup"] if of_launch else None}
        for name, interval in measured.items():
            what = f"{draft}, {load} running, launch over {name}"
            figures += _row(f"{what}: experiment of {arm['episodes']} episodes", interval)
            log, half = bench[load][name]
            values = {"value": log, "lower": log - half, "upper": log + half}
            figures += _row(
                f"{what}: bench of {_TURNS} turns", {k: math.exp(v) for k, v in values.items()}
            )
    return figures


def _row(what: str, interval: Mapping[str, float] | None) -> list[Figure]:
    if interval is None:
        return [Figure(f"{what}: not known", math.nan, "")]
    return [
        Figure(f"{what}{ending}", interval[name], "x")
        for ending, name in (("", "value"), (", from", "lower"), (", to", "upper"))
    ]


def _pace(server: VllmServer, clients: int) -> float:
    """Log time per token of one turn."""
    before = seconds_per_token(server)
    _load(server, clients, _TURN)
    seconds, tokens = (a - b for a, b in zip(seconds_per_token(server), before, strict=True))
    return math.log(seconds / tokens)


def _load(server: VllmServer, clients: int, seconds: float) -> None:
    traffic = Traffic(server.url, clients=clients, max_tokens=_TOKENS)
    with traffic.running():
        time.sleep(seconds)
    failed = [outcome.error for outcome in traffic.outcomes if not outcome.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first with: {failed[0]}")


def _command(*arguments: str) -> str:
    done = specwatch(*arguments, timeout=900)
    if done.returncode:
        raise RuntimeError(f"specwatch {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
