"""Which of our targets the servers of a Prometheus are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pydantic import ValidationError

from specwatch.backfill.prometheus_pages import Server, shown
from specwatch.config.sections import Surroundings
from specwatch.config.target import Target
from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import MINUTE
from specwatch.domain.units import host_port, is_loopback, quoted, server_address
from specwatch.errors import ConfigError

_MOST_NAMED = 8


@dataclass(frozen=True)
class Source:
    """One target, and the servers under whose labels its pages are, one after the other."""

    target: str
    servers: tuple[Server, ...]

    @property
    def instance(self) -> str:
        """What Prometheus calls it; several where that changed."""
        return ", ".join(dict.fromkeys(server.instance for server in self.servers))

    @property
    def models(self) -> Mapping[str, MinuteSet]:
        """In which minutes each model was on a page."""
        by_model: dict[str, MinuteSet] = {}
        for server in self.servers:
            for model, minutes in server.models.items():
                by_model.setdefault(model, MinuteSet()).update(minutes)
        return by_model

    @cached_property
    def present(self) -> MinuteSet:
        """In which minutes there was a page."""
        minutes = MinuteSet()
        for server in self.servers:
            minutes.update(server.present)
        return minutes

    def between(self, since: float, until: float) -> list[Server]:
        """Servers that may have a page in a span."""
        return [
            server
            for server, first, last in self._spans
            if since < last + 2 * MINUTE and until > first - MINUTE
        ]

    @cached_property
    def _spans(self) -> list[tuple[Server, int, int]]:
        known = [(server, server.present) for server in self.servers]
        return [(server, seen.first or 0, seen.last or 0) for server, seen in known]


class FoundTargets(NamedTuple):
    """What servers are."""

    sources: list[Source]
    """Those that can be filled in, by name."""
    passed_over: list[str]
    """Instances that are none of the configured targets, where only those are wanted."""
    refused: list[str]
    """Why others cannot be filled in, a sentence each."""


def sources(
    servers: Sequence[Server],
    targets: Sequence[Target],
    *,
    name: str | None,
    hostname: str,
    default_name: Callable[[str], str],
    near: bool = True,
    configured_only: bool = False,
) -> FoundTargets:
    """The targets that servers are, by name.

    ``name`` is the one that the user gave; ``targets`` are the configured ones, of which the host
    and port say which it is; ``default_name`` names any other by its instance, or raises
    ConfigError. ``hostname`` is what this machine calls itself; a loopback instance is on it only
    where Prometheus is ``near``: on it too.
    """
    configured = {_place(*server_address(target.url), hostname): target.name for target in targets}
    by_name: dict[str, list[Server]] = {}
    passed_over: list[str] = []
    refused: list[str] = []
    for server in servers:
        far = not near and _is_loopback(server.instance)
        own = name or (None if far else configured.get(_place_of(server.instance, hostname)))
        if own is None and configured_only:
            passed_over.append(server.instance)
        elif own is None and far:
            refused.append(
                f"{quoted(server.instance)} is on the machine of Prometheus, which is not this one;"
                f" give --target NAME with --selector '{shown(server.labels)}'"
            )
        else:
            try:
                by_name.setdefault(own or default_name(server.instance), []).append(server)
            except ConfigError as error:
                refused.append(str(error))
    sources_of_targets: list[Source] = []
    for target in sorted(by_name):
        try:
            sources_of_targets.append(_source(target, by_name[target], name))
        except ConfigError as error:
            refused.append(str(error))
    return FoundTargets(sources_of_targets, list(dict.fromkeys(passed_over)), refused)


def _source(target: str, servers: Sequence[Server], name: str | None) -> Source:
    ordered = sorted(servers, key=lambda server: (server.present.first or 0, server.labels))
    for index, later in enumerate(ordered):
        for earlier in ordered[:index]:
            # A server whose labels changed may show both in the minute of the change.
            if later.present.common(earlier.present) > 1:
                raise ConfigError(_both(target, earlier, later, name))
    return Source(target, tuple(ordered))


def _both(target: str, first: Server, second: Server, name: str | None) -> str:
    labels, other_labels = dict(first.labels), dict(second.labels)
    unlike = sorted(label for label in labels if labels[label] != other_labels[label])
    choice = shown(tuple((label, labels[label]) for label in unlike))
    remedy = f"choose one, like --selector '{choice}'"
    if name is not None and first.instance != second.instance:
        remedy += ", or leave --target out"
    return (
        f"{shown(first.labels)} and {shown(second.labels)} are both target {target} at the same"
        f" time, and would be counted twice; {remedy}"
    )


def named(labels: Sequence[str]) -> str:
    """The first of many names, in a sentence."""
    more = f" and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else ""
    return ", ".join(labels[:_MOST_NAMED]) + more


def _place_of(instance: str, hostname: str) -> str:
    try:
        return _place(*server_address(f"http://{instance.lower()}"), hostname)
    except ValueError:
        return instance


def _is_loopback(instance: str) -> bool:
    try:
        return is_loopback(server_address(f"http://{instance.lower()}")[0])
    except ValueError:
        return False


def _place(host: str, port: int, hostname: str) -> str:
    return host_port(hostname.lower() if is_loopback(host) else host.lower(), port)


def names_of(surroundings: Surroundings) -> Callable[[str], str]:
    """Names an instance as ``specwatch run --target http://INSTANCE`` would, or by itself.

    What it returns raises ConfigError for an instance that cannot be a target's name.
    """

    def name(instance: str) -> str:
        try:
            written = {"url": f"http://{instance}"}
            return Target.model_validate(written, context=surroundings).name
        except ValidationError:
            pass
        try:
            return Target.model_validate({"url": "http://instance", "name": instance}).name
        except ValidationError:
            raise ConfigError(
                f"the instance {quoted(instance)} cannot be the name of a target; give --target"
                " NAME, and --selector for one instance"
            ) from None

    return name
