"""Matches the servers of a Prometheus to targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pydantic import ValidationError

from specwatch.config.sections import Surroundings
from specwatch.config.target import Target
from specwatch.domain.minute_set import MinuteSet
from specwatch.domain.model import MINUTE
from specwatch.domain.units import host_port, is_loopback, quoted, server_address
from specwatch.errors import ConfigError
from specwatch.lab.backfill.prometheus_pages import ScrapedServer, shown, union

_MOST_NAMED = 8


@dataclass(frozen=True)
class BackfillSource:
    """One target, and its servers: several, one after the other, if its labels changed."""

    target: str
    servers: tuple[ScrapedServer, ...]

    @property
    def instance(self) -> str:
        """Its label ``instance``, or several if it changed."""
        return ", ".join(dict.fromkeys(server.instance for server in self.servers))

    @property
    def models(self) -> Mapping[str, MinuteSet]:
        """The minutes in which each model was on a page."""
        by_model: dict[str, MinuteSet] = {}
        for server in self.servers:
            for model, minutes in server.models.items():
                by_model.setdefault(model, MinuteSet()).update(minutes)
        return by_model

    @cached_property
    def present(self) -> MinuteSet:
        """The minutes with a page."""
        return union(server.present for server in self.servers)

    def between(self, since: float, until: float) -> list[ScrapedServer]:
        """The servers that may have a page in this span."""
        return [
            server
            for server in self.servers
            if since < (server.present.last or 0) + 2 * MINUTE
            and until > (server.present.first or 0) - MINUTE
        ]


class FoundTargets(NamedTuple):
    """The result of matching servers to targets."""

    sources: list[BackfillSource]
    """Targets that can be filled in, sorted by name."""
    passed_over: list[str]
    """Instances that are not configured, if only configured targets are wanted."""
    refused: list[str]
    """Sentences on why other instances cannot be filled in."""


def sources(
    servers: Sequence[ScrapedServer],
    targets: Sequence[Target],
    *,
    name: str | None,
    hostname: str,
    default_name: Callable[[str], str],
    near: bool = True,
    configured_only: bool = False,
) -> FoundTargets:
    """Match servers to targets.

    ``name`` is the target that the user gave. Otherwise a server is the configured one of
    ``targets`` with its host and port, or ``default_name`` makes a name of its instance or raises
    ConfigError. ``hostname`` is the name of this machine. A loopback instance is on this machine
    only if Prometheus is, too (``near``).
    """
    configured = {_place(*server_address(target.url), hostname): target.name for target in targets}
    by_name: dict[str, list[ScrapedServer]] = {}
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
    sources_of_targets: list[BackfillSource] = []
    for target in sorted(by_name):
        try:
            sources_of_targets.append(_source(target, by_name[target], name))
        except ConfigError as error:
            refused.append(str(error))
    return FoundTargets(sources_of_targets, list(dict.fromkeys(passed_over)), refused)


def _source(target: str, servers: Sequence[ScrapedServer], name: str | None) -> BackfillSource:
    ordered = sorted(servers, key=lambda server: (server.present.first or 0, server.labels))
    for index, later in enumerate(ordered):
        for earlier in ordered[:index]:
            # A server whose labels changed may have both in the minute of the change.
            if later.present.common(earlier.present) > 1:
                raise ConfigError(_both(target, earlier, later, name))
    return BackfillSource(target, tuple(ordered))


def _both(target: str, first: ScrapedServer, second: ScrapedServer, name: str | None) -> str:
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
    """Up to eight names in a sentence, and how many more there are."""
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
    """A function that names an instance as ``specwatch run --target http://INSTANCE`` does.

    The name is the instance itself if it is not an address. The function raises ConfigError for an
    instance that cannot be the name of a target.
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
