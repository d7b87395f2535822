"""The manual's reference pages are complete."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specwatch.cli import group, reference
from specwatch.config.loading import Config, sections_in
from specwatch.config.rules import DEFAULT_RULES
from specwatch.config.rules.metrics import MEASURES
from specwatch.config.sections import Section
from tests.cli.conftest import Run
from tests.web.decided import START, decided
from tests.web.exported import page
from tests.web.statuses import daemon, of_tap, target, whole


@pytest.fixture(scope="module")
def pages() -> Mapping[str, str]:
    return reference.reference()


def keys(section: type[Section]) -> Iterator[str]:
    for key, field in section.written_keys().items():
        yield key
        for inner in sections_in(field.annotation):
            yield from keys(inner)


def test_every_key_has_a_row_with_a_meaning(pages: Mapping[str, str]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| .* \| (.+) \|$", pages["configuration.md"], re.M)
    assert {key for key, _, _ in rows} == set(keys(Config))


def test_defaults_are_spelt_as_a_file_has_them(pages: Mapping[str, str]) -> None:
    page_text = pages["configuration.md"]
    for row in (
        "| `interval` | duration | `5s` |",
        "| `max_page_size` | size | `16MiB` |",
        "| `use_defaults` | `true` or `false` | `true` |",
        "| `url` | URL | required |",
        "| `mode` | `off` or `observe` or `act` | `observe` |",
    ):
        assert row in page_text


def test_a_section_that_is_linked_to_is_there(pages: Mapping[str, str]) -> None:
    page_text = pages["configuration.md"]
    headings = re.findall(r"^## (.+)$", page_text, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower() for heading in headings}
    assert set(re.findall(r"\(#([^)]+)\)", page_text)) <= anchors


def test_every_command_shows_its_help(pages: Mapping[str, str]) -> None:
    context = click.Context(group)
    for name in group.list_commands(context):
        assert f"## specwatch {name}\n" in pages["command-line.md"]
    assert "## specwatch guard explain\n" in pages["command-line.md"]
    assert "generate reference" not in pages["command-line.md"].partition("-->")[2]
    assert "Usage: specwatch strip [OPTIONS] -- COMMAND..." in pages["command-line.md"]
    assert "  -h, --help " in pages["command-line.md"]


def test_every_metric_of_a_page_is_listed_with_its_labels(pages: Mapping[str, str]) -> None:
    rows = dict(re.findall(r"^\| `(specwatch_\w+)` \| \w+ \| (.*?) \|", pages["metrics.md"], re.M))
    bucket = of_tap(START, "0", drafts=10, of=10, server=20)
    status = daemon(target(recent=(whole(), bucket), decision=decided()))
    for family in text_string_to_metric_families(page(status)):
        for sample in family.samples:
            # Verdicts have a segment only where they are about one.
            listed = set(re.findall(r"`(\w+)`", rows[sample.name]))
            assert listed in (set(sample.labels), {*sample.labels, "segment"})


def test_rules_and_the_metrics_that_they_can_name_are_listed(pages: Mapping[str, str]) -> None:
    for rule in DEFAULT_RULES:
        assert f"### {rule.name}\n" in pages["rules.md"]
    for name in MEASURES:
        assert f"| `{name}` |" in pages["rules.md"]


def test_every_path_of_the_daemon_says_what_it_answers(pages: Mapping[str, str]) -> None:
    page_text = pages["http-api.md"]
    for path in ("/", "/metrics", "/healthz", "/api/v1/windows", "/api/v1/report"):
        assert re.search(rf"^## {path}\n\n\S", page_text, re.M)


def test_a_stale_page_is_shown(
    run: Run, pages: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "reference", lambda: pages)
    assert run("generate", "reference", "-o", tmp_path).exit_code == 0
    page = tmp_path / "rules.md"
    page.write_text(pages["rules.md"].replace("### garbage", "### rubbish"))
    done = run("generate", "reference", "-o", tmp_path, "--check")
    assert done.exit_code == 1
    assert "+### garbage" in done.stdout
