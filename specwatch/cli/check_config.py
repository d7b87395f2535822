"""``specwatch check-config``: checks a configuration, and what it refers to."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from specwatch.actuators.switch import SwitchClient
from specwatch.actuators.systemd.helper import HelperClient
from specwatch.alerts.client import AlertPost
from specwatch.cli import guard_plan, options
from specwatch.cli.terminal import Terminal
from specwatch.config.guard import Alertmanager
from specwatch.config.loading import Config
from specwatch.config.rules.metrics import MEASURES
from specwatch.config.service import SupervisedService, SystemdService
from specwatch.config.target import Target
from specwatch.discovery.sources import discover
from specwatch.discovery.target_groups import merged
from specwatch.domain.baseline import choose
from specwatch.domain.buckets import order_of
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.model import TEMPERATURE, Environment, Series
from specwatch.domain.units import format_duration, is_loopback
from specwatch.engines.sample_names import ENGINE_TITLES
from specwatch.errors import ActuatorError, ConfigError, SpecwatchError
from specwatch.guard.foresight import VERIFIABLE, WARM_UP
from specwatch.guard.restart_phases import MOST_VERIFY
from specwatch.report.mail_and_webhooks import Hook, Mail
from specwatch.rules import summary
from specwatch.runtime.tls import tls_context
from specwatch.scrape import tally
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import BlockingPageClient
from specwatch.scrape.tally import no_engine
from specwatch.scrape.taps import other_buckets
from specwatch.store import schema
from specwatch.store.database import parse_url
from specwatch.store.readers import Reader
from specwatch.wording.figures import counted
from specwatch.wording.text import LONGEST_SENTENCE, shown

_AT_ONCE = 32
_MOST_BUCKETS = 24
_MOST_NAMED = 3
_PROBE_SECONDS = 5.0
"""Time limit for the answer of a mail server or webhook."""

Json = dict[str, Any]
Check = tuple[str, Callable[[], str]]
"""What is checked, and the check: it returns a detail, and raises SpecwatchError if it fails."""


@click.command(name="check-config")
@options.file_option
@options.target_option
@click.option("--offline", is_flag=True, help="Check only the file, without connections.")
@options.json_option
def command(file: Path | None, targets: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Check a configuration, and that its database, targets, Alertmanagers and recipients of the
    report answer; show the rules that apply, and what the guard would do.

    It writes and creates nothing, and sends no alert, mail or post. Exit code 2 when the file is
    refused, 1 when something does not answer, or the guard cannot do its part.
    """
    answer: Json = {
        "ok": False,
        "problems": [],
        "configuration": None,
        "rules": [],
        "checks": [],
        "notes": [],
    }
    try:
        config = options.load(file, targets)
    except ConfigError as error:
        if not as_json:
            raise
        options.print_json(answer | {"problems": str(error).split("\n")})
        raise click.exceptions.Exit(2) from None
    checks, notes = ([], []) if offline else _checks(config)
    notes += _notes(config)
    ok = all(check["ok"] for check in checks)
    rules = config.effective_rules()
    if as_json:
        answer |= {"ok": ok, "configuration": config.public(), "checks": checks, "notes": notes}
        answer["rules"] = [rule.model_dump(mode="json") for rule in rules]
        options.print_json(answer)
    else:
        terminal = Terminal()
        for check in (check for check in checks if not check["ok"]):
            detail = shown(check["detail"], LONGEST_SENTENCE)
            terminal.line((f"{check['what']}: FAILED: {detail}", "red"))
        watched = [counted(len(config.targets), "target")]
        if config.discovery:
            watched.append(counted(len(config.discovery), "source") + " of targets")
        terminal.line(f"configuration: ok, {', '.join(watched)}")
        disabling = [rule.name for rule in rules if rule.action == "disable"]
        applying = f"rules: {len(rules) or 'none'} apply"
        if disabling:
            applying += f", {len(disabling)} of them would disable speculation: "
            applying += ", ".join(disabling)
        if config.slos:
            applying += f"; {counted(len(config.slos), 'SLO')}"
        terminal.line(shown(applying, LONGEST_SENTENCE))
        for note in notes:
            terminal.line(f"note: {shown(note, LONGEST_SENTENCE)}")
        for check in (check for check in checks if check["ok"]):
            terminal.line(f"{check['what']}: ok, {shown(check['detail'], LONGEST_SENTENCE)}")
    if not ok:
        raise click.exceptions.Exit(1)


# --- notes


def _notes(config: Config) -> Iterator[str]:
    """Yield what is probably a mistake in the file."""
    host = config.listen.host
    everywhere = host in ("0.0.0.0", "::")  # noqa: S104
    if (everywhere or not is_loopback(host)) and config.listen_token_file is None:
        yield (
            f"listen is {config.listen}, and there is no listen_token_file: everybody who can"
            " connect to that address can read names, figures and configuration of all targets"
        )
    names: dict[str, list[str]] = {}
    for target in config.targets:
        names.setdefault(target.metrics_url, []).append(target.name)
    for url, listed in names.items():
        if len(listed) > 1:
            yield f"{url} is watched as {', '.join(listed)}: its requests are counted for each"
    lacking = [target.name for target in config.targets if target.service is None]
    if config.guard.mode == "act" and lacking:
        yield (
            f"guard.mode is act, but no service is configured for {_some(lacking)}: the guard"
            " cannot restart vLLM there"
        )
    if config.guard.holdout and config.guard.mode != "act":
        yield (
            f"guard.holdout is {config.guard.holdout}, but guard.mode is {config.guard.mode}: the"
            " guard restarts no server without speculation; set guard.mode: act"
        )
    sizes = Counter(target.group for target in config.targets if target.group)
    small = [group for group, size in sizes.items() if size < 3 * config.guard.holdout]
    if small and not config.discovery:
        yield (
            f"guard.holdout is {config.guard.holdout}, at most a third of a group: too many for"
            f" {_some(small)}"
        )
    given, needed = config.guard.verify, format_duration(VERIFIABLE)
    if config.guard.mode == "off" or given >= VERIFIABLE:
        return
    most = format_duration(MOST_VERIFY * given)
    then = f"verification is extended to that, up to {most}"
    if MOST_VERIFY * given < VERIFIABLE:
        then = (
            f"verification ends undecided after {most}, three times that, and speculation stays off"
        )
    yield (
        f"guard.verify is {format_duration(given)}, but it takes about {needed} to measure whether"
        f" switching off helped: the first {format_duration(WARM_UP)} after a restart do not count,"
        f" and {LEAST_SAMPLES} whole minutes of traffic are needed; {then}. Make it at least"
        f" {needed}"
    )


def _unmeasured(config: Config, measured: Collection[str]) -> Iterator[str]:
    """Yield a note on targets without a baseline, if rules need one."""
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
    if lacking:
        names = ", ".join(rule.name for rule in waiting)
        yield (
            f"no baseline of {_some(lacking)}: speedup is assumed, not measured; run `specwatch"
            f" calibrate`. Until then these rules have no measured speedup: {names}"
        )


def _without_helper(config: Config) -> Iterator[str]:
    """Yield a note on units that this process, as root, can restart, but the daemon cannot."""
    if os.geteuid() != 0 or config.guard.mode == "off":
        return
    for target in config.targets:
        service = target.service
        if isinstance(service, SystemdService) and service.scope == "system":
            try:
                HelperClient(service.unit, timeout=service.timeout).status()
            except ActuatorError as error:
                yield (
                    f"root can restart {service.unit}, but the daemon, as another user,"
                    f" cannot: {error}"
                )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


# --- checks


def _checks(config: Config) -> tuple[list[Json], list[str]]:
    """Each check and its outcome; and notes. Discovered targets are checked too."""
    measured: set[str] = set()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        discovered = list(pool.map(discover, config.discovery))
        names = list(map(str, config.discovery))
        lists = zip(names, (targets for targets, _ in discovered), strict=True)
        targets, left_out = merged(config.targets, list(lists))
        config = config.model_copy(update={"targets": targets})
        checks = [
            (f"database {config.database.shown()}", partial(_database, config, measured)),
            *(
                (f"discovery by {name}", partial(_source, *outcome))
                for name, outcome in zip(names, discovered, strict=True)
            ),
            *_checks_of_targets(config),
            *_checks_of_recipients(config),
        ]
        outcomes = list(pool.map(_outcome, checks))
    notes = _unmeasured(config, measured) if outcomes[0]["ok"] else ()
    return outcomes, [*left_out, *notes, *_without_helper(config)]


def _source(targets: Sequence[Target], problems: Sequence[str]) -> str:
    """What a source of targets has; SpecwatchError for what is wrong with it."""
    if problems:
        raise SpecwatchError("; ".join(problems))
    return counted(len(targets), "target")


def _outcome(check: Check) -> Json:
    what, act = check
    try:
        return {"what": what, "ok": True, "detail": act()}
    except SpecwatchError as error:
        return {"what": what, "ok": False, "detail": str(error)}


def _checks_of_targets(config: Config) -> Iterator[Check]:
    edges = config.temperature_buckets
    for target in config.targets:
        yield f"target {target.name} at {target.metrics_url}", partial(_target, target, edges)
        if target.proxy is not None:
            yield f"proxy of {target.name} at {target.proxy}", partial(_proxy, target, edges)
        if target.switch is not None:
            yield f"switch of {target.name}", partial(_switch, target)
    if config.guard.mode == "off":
        return
    workloads = {one.workload.name: one.workload for one in config.targets if one.workload}
    for target in (*config.targets, *workloads.values()):
        if target.service is not None:
            service = guard_plan.service_name(target)
            yield f"guard of {target.name}, {service}", partial(_service, target)


def _checks_of_recipients(config: Config) -> Iterator[Check]:
    """Alertmanagers, and the recipients of reports."""
    alertmanager, report = config.alertmanager, config.report
    if alertmanager is not None:
        for url in alertmanager.urls:
            yield f"Alertmanager {url}", partial(_alertmanager, alertmanager, url)
    if report is None:
        return
    yield f"reports in {report.directory}", partial(_folder, report.directory)
    if report.email is not None:
        mail = Mail(report.email, socket.gethostname())
        yield f"mail server {mail.where}", partial(mail.probe, _PROBE_SECONDS)
    for webhook in report.webhooks:
        yield f"webhook {webhook.name}", partial(Hook(webhook).probe, _PROBE_SECONDS)


def _database(config: Config, measured: set[str]) -> str:
    """Check the database; adds targets with a baseline that is still valid to ``measured``."""
    url = config.database.connect_url()
    revision = options.revision(url)
    schema.require_known(revision, config.database.shown())
    if revision == schema.CURRENT:
        with closing(Reader.of(url)) as reader:
            measurements = reader.measurements()
        now, max_age = time.time(), config.baseline.max_age
        measured |= {
            one.key.target
            for one in measurements
            if choose([one], Environment(), now=now, max_age=max_age)
        }
    denied = _not_writable(url)
    if denied is not None:
        raise SpecwatchError(f"this user may not write in {denied}")
    return f"revision {revision}" if revision else "empty, will be set up at start"


def _not_writable(url: str) -> Path | None:
    """The file or folder of a SQLite database that this user may not write."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    file = Path(parsed.database or "")
    # Path.exists() raises PermissionError in a folder that this user may not search.
    folder = next(parent for parent in file.absolute().parents if os.path.exists(parent))
    if os.path.exists(file) and not os.access(file, os.R_OK | os.W_OK):
        return file
    return None if os.access(folder, os.W_OK | os.X_OK) else folder


def _samples(target: Target, url: str) -> Mapping[Series, float]:
    """The page of a target, or of its proxy. Raises SpecwatchError."""
    own = url == target.url
    client = BlockingPageClient(
        url,
        timeout=target.timeout,
        max_size=target.max_page_size,
        headers=target.request_headers if own else dict,
        tls=tls_context(target, url),
    )
    with closing(client):
        page = client.fetch(target.metrics_path if own else "/metrics")
    return PageReader(target.page_limits).read(page)


def _target(target: Target, edges: Sequence[float]) -> str:
    problems: list[str] = []
    samples = _samples(target, target.url)
    models = summary.models_of(samples, problems)
    parts = tally.parts_of(samples)
    if not models:
        raise SpecwatchError(
            str(no_engine(parts)) if parts.tap else f"the server there is not {ENGINE_TITLES}"
        )
    names = [
        f"{shown(model.model_name) or 'unnamed'} (speculation {model.speculation})"
        for model in models
    ]
    text = ", ".join(names + problems)
    return f"{text}; {_tap(parts.tap, edges)}" if parts.tap else text


def _switch(target: Target) -> str:
    with closing(SwitchClient(target)) as switch:
        state = switch.state()
    if state.unavailable:
        raise SpecwatchError(f"it follows no orders: {state.unavailable}")
    return f"0 to {state.launch_draft_tokens} draft tokens, {state.draft_tokens_now} now"


def _proxy(target: Target, edges: Sequence[float]) -> str:
    """Check that the proxy of a target answers, and is one."""
    tap = tally.parts_of(_samples(target, str(target.proxy))).tap
    if not tap:
        raise SpecwatchError("no specwatch_* family on its page; is it a `specwatch tap proxy`?")
    return _tap(tap, edges)


def _tap(tap: Mapping[Series, float], edges: Sequence[float]) -> str:
    """A sentence about a tap, and the buckets of its requests."""
    counted = {series.segment for series in tap if series.segment.dimension == TEMPERATURE}
    temperatures = sorted(counted, key=order_of)
    text = "tap found, no request counted yet"
    if temperatures:
        more = ", ..." if len(temperatures) > _MOST_BUCKETS else ""
        named = ", ".join(shown(one.value) for one in temperatures[:_MOST_BUCKETS])
        text = f"tap found, with temperatures {named}{more}"
    others = other_buckets(temperatures, edges)
    return text if others is None else f"{text}; {others}"


def _service(target: Target) -> str:
    """What the guard would do to a target with a service. Raises ActuatorError."""
    if isinstance(target.service, SupervisedService):
        return (
            "restarted by `specwatch run -- COMMAND`; `specwatch strip -- COMMAND` shows what would"
            " be run"
        )
    return guard_plan.plan_summary(guard_plan.restart_of(target))


def _alertmanager(section: Alertmanager, url: str) -> str:
    """Check that an Alertmanager accepts alerts, by sending an empty list."""
    with closing(AlertPost(section, url)) as post:
        post.send([])
    return "it accepts alerts"


def _folder(directory: Path) -> str:
    """Check that reports can be written to a folder."""
    folder = directory.absolute()
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except PermissionError as error:
        detail = f"this user may not search {error.filename}; use sudo"
        raise SpecwatchError(detail) from error
    if not existing.is_dir():
        raise SpecwatchError(f"{existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise SpecwatchError(f"this user may not write in {existing}")
    return "they can be written" if existing == folder else "the folder will be made"
