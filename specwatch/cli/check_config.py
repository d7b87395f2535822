"""``specwatch check-config``: everything that can be wrong, found now."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from specwatch.alerts.client import AlertPost, PostError
from specwatch.cli import guard_output, guard_store, options
from specwatch.config.guard import Alertmanager
from specwatch.config.loading import Config
from specwatch.config.report import Delivery
from specwatch.config.rules.metrics import MEASURES
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.domain.baseline import choose
from specwatch.domain.buckets import order_of
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import Environment, Series
from specwatch.domain.units import format_duration
from specwatch.engines.families import ENGINE_TITLES
from specwatch.errors import ConfigError, SpecwatchError
from specwatch.guard.foresight import VERIFIABLE, WARM_UP
from specwatch.guard.switching import MOST_VERIFY
from specwatch.report.channels import Hook, Mail
from specwatch.rules import summary
from specwatch.runtime.tls import tls_context
from specwatch.scrape import tally
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import PageClient
from specwatch.scrape.taps import other_buckets
from specwatch.scrape.window_builder import no_engine
from specwatch.store import schema
from specwatch.store.database import parse_url
from specwatch.store.readers import Reader
from specwatch.wording.figures import counted
from specwatch.wording.text import LONGEST_SENTENCE, shown

_AT_ONCE = 32
_MOST_BUCKETS = 24
_MOST_NAMED = 3
_PROBE_SECONDS = 5.0
"""How long a mail server or webhook has to answer."""

Json = dict[str, Any]


@click.command(name="check-config")
@options.file_option
@options.target_option
@click.option("--offline", is_flag=True, help="Check the file only, contact nobody.")
@options.json_option
def command(file: Path | None, targets: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Check a configuration, and that its database, targets, Alertmanagers and whoever gets the
    report answer; show the rules that apply, and what the guard would do.

    Nothing is written or created, and no alert, mail or post is sent. Exit code 2 when the file is
    refused, 1 when something does not answer, or the guard could not do its part.
    """
    try:
        config = options.load(file, targets)
    except ConfigError as error:
        if as_json:
            problems = str(error).split("\n")
            options.print_json(
                {
                    "ok": False, "problems": problems, "configuration": None, "rules": [],
                    "checks": [], "notes": [],
                }
            )  # fmt: skip
            raise click.exceptions.Exit(2) from None
        raise
    checks, notes = ([], []) if offline else _checks(config)
    notes += [*_listed_twice(config), *_without_service(config), *_short_verify(config)]
    ok = all(check["ok"] for check in checks)
    if as_json:
        rules = [rule.model_dump(mode="json") for rule in config.effective_rules()]
        options.print_json(
            {
                "ok": ok, "problems": [], "configuration": config.public(), "rules": rules,
                "checks": checks, "notes": notes,
            }
        )  # fmt: skip
    else:
        click.echo(f"configuration: ok, {counted(len(config.targets), 'target')}")
        click.echo(f"rules: {_rules_summary(config)}")
        for note in notes:
            click.echo(f"note: {shown(note, LONGEST_SENTENCE)}")
        for check in checks:
            detail = shown(check["detail"], LONGEST_SENTENCE)
            click.echo(f"{check['what']}: {'ok, ' if check['ok'] else 'FAILED: '}{detail}")
    if not ok:
        raise click.exceptions.Exit(1)


def _rules_summary(config: Config) -> str:
    rules = config.effective_rules()
    said = f"{len(rules) or 'none'} apply"
    disabling = [rule.name for rule in rules if rule.action == "disable"]
    if disabling:
        said += f", {len(disabling)} of them would disable speculation: {', '.join(disabling)}"
    if config.slos:
        said += f"; {counted(len(config.slos), 'SLO')}"
    return shown(said, LONGEST_SENTENCE)


def _unmeasured(config: Config, measured: Collection[str]) -> list[str]:
    """What rules cannot know yet of targets that are not among those with a baseline."""
    waiting = [
        rule
        for rule in config.effective_rules()
        if any(MEASURES[condition.metric].needs_baseline for condition in rule.conditions)
    ]
    lacking = [
        target.name
        for target in config.targets
        if target.name not in measured and any(rule.scope.takes_in(target.name) for rule in waiting)
    ]
    if not lacking:
        return []
    names = ", ".join(rule.name for rule in waiting)
    return [
        f"no baseline of {_some(lacking)}: speedup is assumed, not"
        f" measured; run `specwatch calibrate`. Until then these rules know less: {names}"
    ]


def _with_baseline(config: Config, url: str) -> set[str]:
    """Targets of which the database has a baseline that may be compared with."""
    reader = Reader.of(url)
    try:
        measurements = reader.measurements()
    finally:
        reader.close()
    now, max_age = time.time(), config.baseline.max_age
    return {
        one.key.target
        for one in measurements
        if choose([one], Environment(), now=now, max_age=max_age)
    }


def _listed_twice(config: Config) -> Iterator[str]:
    """Yield a note on each server that several targets have."""
    names: dict[str, list[str]] = {}
    for target in config.targets:
        names.setdefault(target.metrics_url, []).append(target.name)
    for url, listed in names.items():
        if len(listed) > 1:
            yield f"{url} is watched as {', '.join(listed)}: what it serves counts as often"


def _checks(config: Config) -> tuple[list[Json], list[str]]:
    """Each check and its outcome; and what the rules still lack."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        database = pool.submit(_database, config)
        pending = []
        for target in config.targets:
            pending.append(pool.submit(_target, target, config.temperature_buckets))
            if target.proxy is not None:
                pending.append(pool.submit(_proxy, target, config.temperature_buckets))
            if target.service is not None and config.guard.mode != "off":
                pending.append(pool.submit(_service, target))
        if config.alertmanager is not None:
            for url in config.alertmanager.urls:
                pending.append(pool.submit(_alertmanager, config.alertmanager, url))
        if config.report is not None:
            pending += _submit_report_checks(pool, config.report)
        database_check, measured = database.result()
        notes = [] if measured is None else _unmeasured(config, measured)
        return [database_check, *(check.result() for check in pending)], notes


def _database(config: Config) -> tuple[Json, set[str] | None]:
    """Whether it can be used, and the targets of which it has a baseline, where it can say."""
    what = f"database {config.database.shown()}"
    try:
        url = config.database.connect_url()
        revision = options.revision(url)
        schema.require_known(revision, config.database.shown())
        measured = _with_baseline(config, url) if revision == schema.CURRENT else set[str]()
        denied = _not_writable(url)
    except SpecwatchError as error:
        return _failed(what, error), None
    if denied is not None:
        return _failed(what, f"this user may not write in {denied}"), None
    detail = f"revision {revision}" if revision else "empty, will be set up at start"
    return _passed(what, detail), measured


def _not_writable(url: str) -> Path | None:
    """The file or folder that keeps this user from writing a SQLite database."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    file = Path(parsed.database or "")
    # Path.exists() raises PermissionError for what this user may not look for.
    folder = next(parent for parent in file.absolute().parents if os.path.exists(parent))
    if os.path.exists(file) and not os.access(file, os.R_OK | os.W_OK):
        return file
    return None if os.access(folder, os.W_OK | os.X_OK) else folder


def _target(target: Target, edges: Sequence[float]) -> Json:
    what = f"target {target.name} at {target.metrics_url}"
    try:
        client = PageClient(
            target.url,
            timeout=target.timeout,
            max_size=target.max_page_size,
            headers=target.request_headers,
            tls=tls_context(target),
        )
        try:
            page = client.fetch(target.metrics_path)
        finally:
            client.close()
        problems: list[str] = []
        samples = PageReader(target.page_limits).read(page)
        models = summary.models_of(samples, problems)
    except SpecwatchError as error:
        return _failed(what, error)
    if not models:
        detail = f"it is not {ENGINE_TITLES} that answers there"
        if tally.parts_of(samples).tap:
            detail = str(no_engine(tally.parts_of(samples)))
        return _failed(what, detail)
    found = [
        f"{shown(model['model_name']) or 'unnamed'} (speculation {model['speculation']})"
        for model in models
    ]
    said = ", ".join(found + problems)
    inside = tally.parts_of(samples).tap
    if inside:
        said += f"; {_tap_said(inside, edges)}"
    return _passed(what, said)


def _proxy(target: Target, edges: Sequence[float]) -> Json:
    """Whether the proxy of a target answers, and is one."""
    url = str(target.proxy)
    what = f"proxy of {target.name} at {url}"
    try:
        client = PageClient(
            url,
            timeout=target.timeout,
            max_size=target.max_page_size,
            tls=tls_context(target, url),
        )
        try:
            tap = tally.parts_of(PageReader(target.page_limits).read(client.fetch("/metrics"))).tap
        finally:
            client.close()
    except SpecwatchError as error:
        return _failed(what, error)
    if not tap:
        detail = "no specwatch_* family on its page; is it a `specwatch tap proxy`?"
        return _failed(what, detail)
    return _passed(what, _tap_said(tap, edges))


def _tap_said(tap: Mapping[Series, float], edges: Sequence[float]) -> str:
    """A sentence about a tap that was found, and the buckets that it has counted for."""
    found = sorted({series.temperature for series in tap if series.temperature}, key=order_of)
    said = "tap found, no request counted yet"
    if found:
        more = ", ..." if len(found) > _MOST_BUCKETS else ""
        named = ", ".join(shown(label) for label in found[:_MOST_BUCKETS])
        said = f"tap found, with temperatures {named}{more}"
    others = other_buckets(found, edges)
    return said if others is None else f"{said}; {others}"


def _service(target: Target) -> Json:
    """What the guard would do to a target with a service, or why it could not."""
    what = f"guard of {target.name}, {guard_output.service_name(target)}"
    if isinstance(target.service, SupervisedService):
        return _passed(
            what,
            "restarted by `specwatch run -- COMMAND`; `specwatch strip -- COMMAND` shows what would"
            " be run",
        )
    try:
        return _passed(what, guard_output.plan_summary(guard_store.plan_of(target)))
    except SpecwatchError as error:
        return _failed(what, error)


def _alertmanager(section: Alertmanager, url: str) -> Json:
    """Whether an Alertmanager takes alerts from us: it is sent none."""
    what = f"Alertmanager {url}"
    post = AlertPost(section, url)
    try:
        post.send([])
    except PostError as error:
        return _failed(what, error)
    finally:
        post.close()
    return _passed(what, "it takes alerts")


def _short_verify(config: Config) -> list[str]:
    """A note on a ``guard.verify`` too short to measure anything in."""
    given, most = config.guard.verify, MOST_VERIFY * config.guard.verify
    if config.guard.mode == "off" or given >= VERIFIABLE:
        return []
    needed = format_duration(VERIFIABLE)
    if most < VERIFIABLE:
        then = (
            f"verifying ends undecided after {format_duration(most)}, three times that, and"
            " speculation is left off"
        )
    else:
        then = f"verifying is prolonged to that, up to {format_duration(most)}"
    return [
        f"guard.verify is {format_duration(given)}, and whether switching off helped takes about"
        f" {needed} to measure: the first {format_duration(WARM_UP)} after a restart do not count,"
        f" and {LEAST_SAMPLES} whole minutes of traffic are needed; {then}. Make it at least"
        f" {needed}"
    ]


def _without_service(config: Config) -> list[str]:
    """A note on targets that the guard may restart, and does not know how to."""
    lacking = [target.name for target in config.targets if target.service is None]
    if config.guard.mode != "act" or not lacking:
        return []
    return [
        f"guard.mode is act, and there is no service of {_some(lacking)}: the guard cannot restart"
        " what it does not know how to"
    ]


def _submit_report_checks(pool: ThreadPoolExecutor, section: Delivery) -> list[Future[Json]]:
    """Ask whatever reports go to: the folder, the mail server, each webhook."""
    pending = [pool.submit(_report_folder, section)]
    if section.email is not None:
        mail = Mail(section.email, socket.gethostname())
        pending.append(pool.submit(_probe, f"mail server {mail.where}", mail.probe))
    for webhook in section.webhooks:
        pending.append(pool.submit(_probe, f"webhook {webhook.name}", Hook(webhook).probe))
    return pending


def _report_folder(section: Delivery) -> Json:
    what, folder = f"reports in {section.directory}", section.directory.absolute()
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except PermissionError as error:
        detail = f"this user may not look into {error.filename}; use sudo"
        return _failed(what, detail)
    if not there.is_dir():
        return _failed(what, f"{there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        return _failed(what, f"this user may not write in {there}")
    detail = "they can be written" if there == folder else "the folder will be made"
    return _passed(what, detail)


def _probe(what: str, probe: Callable[[float], str]) -> Json:
    try:
        return _passed(what, probe(_PROBE_SECONDS))
    except SpecwatchError as error:
        return _failed(what, error)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _passed(what: str, detail: str) -> Json:
    return {"what": what, "ok": True, "detail": detail}


def _failed(what: str, reason: SpecwatchError | str) -> Json:
    return {"what": what, "ok": False, "detail": str(reason)}
