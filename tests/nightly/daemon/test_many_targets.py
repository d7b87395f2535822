"""Many targets by the clocks of the system: some hang, and others come and go."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from specwatch.daemon.daemon import Daemon
from tests.daemon.running import Running, config_of, scraped, stored
from tests.fixtures import Log, Serve, target_of
from tests.hostile import hanging, page, wait_for
from tests.scrape.pages import vllm


def test_targets_that_hang_delay_no_other(serve: Serve, database: Path) -> None:
    """200 targets, 50 of which never answer: the others are scraped again and again meanwhile."""
    healthy, hung = serve(page(vllm(drafts=3))), serve(hanging)
    targets = [
        target_of(server.url, f"{name}{n}", interval=0.8, timeout=60.0)
        for name, server, count in (("hung", hung, 50), ("ok", healthy, 150))
        for n in range(count)
    ]
    with Running(Daemon(config_of(database, targets), environ={}, seed=1)) as daemon:
        wait_for(lambda: len(hung.visits) == 50)
        scraped(daemon, 2, [target.name for target in targets[50:]])
        status = daemon.status()
        assert len(hung.visits) == 50, "all of them still hang"
        assert sum(not turn.done() for turn in list(daemon.targets._turns)) <= 200
    assert not any(target.failures or target.failure for target in status.targets)
    assert healthy.connections == 150


def test_reloads_race_with_scrapes_and_leave_everything_in_order(
    serve: Serve, database: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.daemon.daemon._LOOK_SECONDS", 0.01)
    server = serve(page(vllm()))
    targets = [target_of(server.url, f"t{n}", interval=0.02) for n in range(10)]
    configs = [config_of(database, targets)]
    with Running(Daemon(configs[-1], environ={}, reload=lambda: configs[-1], seed=1)) as daemon:
        for turn in range(30):
            timeout = {"timeout": 1.0 + turn / 100}
            changed = [target.model_copy(update=timeout) for target in targets[turn % 3 :]]
            configs.append(config_of(database, changed))
            daemon.ask_to_reload()
            wait_for(lambda: daemon.config.targets == configs[-1].targets)
        scraped(daemon, 3)
        assert [one.name for one in daemon.status().targets] == [one.name for one in targets[2:]]
        assert all(target.failure is None for target in daemon.status().targets)
    keys = Counter((window.start, window.series) for window in stored(database))
    assert max(keys.values()) == 1
    wrong = {"turn_failed", "job_failed", "reload_failed", "reload_refused", "windows_dropped"}
    assert not [entry for entry in log if entry["event"] in wrong]
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("scrape") for name in names) <= 40
