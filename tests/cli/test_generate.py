"""``specwatch generate``: what it writes, and what is stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specwatch.generate import alerts
from specwatch.generate.dashboards.build import BOARDS
from tests.cli.conftest import Run


def test_a_stale_file_is_shown_and_rewritten(run: Run, tmp_path: Path) -> None:
    words = ("generate", "systemd", "-o", tmp_path)
    written = run(*words).stdout.splitlines()
    stale = tmp_path / "specwatch.service"
    stale.write_text(f"{stale.read_text()}# stale")
    done = run(*words, "--check")
    assert done.exit_code == 1
    assert done.stdout.endswith("-# stale\n")
    assert done.stdout.count("@@") == 2, "one place in one file"
    assert run(*words).stdout.splitlines() == [line for line in written if stale.name in line]
    assert run(*words, "--check").exit_code == 0


def test_the_runbook_can_be_elsewhere(run: Run, tmp_path: Path) -> None:
    there = "https://wiki.example/specwatch"
    words = ("generate", "dashboards", "-o", tmp_path, "--runbook-url", there)
    assert run(*words).exit_code == 0
    for board in BOARDS:
        links = json.loads((tmp_path / board.file).read_text())["links"]
        assert there in [link["url"] for link in links]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("wiki", '"wiki" is not a URL; write it like http://127.0.0.1:9469/runbook'),
        ("https://wiki/a b", '"https://wiki/a b" is not a URL'),
        ("https://wiki/{{y}}", '"https://wiki/{{y}}" is not a URL'),
        ("https://wiki/${y}", '"https://wiki/${y}" is not a URL'),
        ("http://", '"http://" is not a URL'),
        ("https://:80/runbook", '"https://:80/runbook" is not a URL'),
        ("https://[wiki]/", '"https://[wiki]/" is not a URL'),
        ("https://wiki#top", "has a fragment, which each alert adds; leave it out"),
    ],
)
@pytest.mark.parametrize("what", ["dashboards", "alerts"])
def test_an_unusable_runbook_url_is_refused(
    run: Run, tmp_path: Path, what: str, url: str, problem: str
) -> None:
    done = run("generate", what, "-o", tmp_path / "new", "--runbook-url", url)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())
    assert not (tmp_path / "new").exists()


def test_alerts_are_written_for_the_objectives_of_the_configuration(
    run: Run, tmp_path: Path
) -> None:
    config = tmp_path / "specwatch.yml"
    config.write_text(
        "targets: [{name: chat, url: http://127.0.0.1:8000}]\n"
        "slos: [{name: snappy, metric: ttft, threshold: 200ms, objective: 99%}]\n"
    )
    words = ("generate", "alerts", "-o", tmp_path, "--config", config, "--job", "watchers")
    assert run(*words).exit_code == 0
    assert "snappy" in (tmp_path / "vllm.rules.yml").read_text()
    assert 'job="watchers"' in (tmp_path / "specwatch.rules.yml").read_text()
    config.write_text("targets: [{name: chat, url: http://127.0.0.1:8000}]\n")
    assert run(*words).exit_code == 0
    assert "VllmLatencySloBurn" not in (tmp_path / "vllm.rules.yml").read_text()


DEFAULTS = {
    "runbook_url": "http://127.0.0.1:9469/runbook",
    "status_url": "http://127.0.0.1:9469",
    "grafana_url": None,
}


@pytest.mark.parametrize(
    ("configured", "words", "links"),
    [
        ("", (), {}),
        (
            "external_url: http://watch:1\n",
            (),
            {"runbook_url": "http://watch:1/runbook", "status_url": "http://watch:1"},
        ),
        (
            "alertmanager: {urls: ['http://a:1'], grafana_url: 'http://g', runbook_url: 'http://r'}\n",
            (),
            {"runbook_url": "http://r", "grafana_url": "http://g"},
        ),
        ("", ("--grafana-url", "http://g/x/"), {"grafana_url": "http://g/x"}),
    ],
)
def test_alerts_link_to_where_the_configuration_says(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configured: str,
    words: tuple[str, ...],
    links: dict[str, str],
) -> None:
    config = tmp_path / "specwatch.yml"
    config.write_text(f"targets: [{{name: chat, url: 'http://127.0.0.1:8000'}}]\n{configured}")
    asked: dict[str, object] = {}
    monkeypatch.setattr(alerts, "alert_files", lambda **given: asked.update(given) or {})
    assert run("generate", "alerts", "-o", tmp_path, "--config", config, *words).exit_code == 0
    assert {name: asked[name] for name in DEFAULTS} == {**DEFAULTS, **links}
