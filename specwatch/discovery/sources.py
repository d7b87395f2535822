"""Reading the sources of targets: files, HTTP servers and DNS."""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from specwatch import __version__
from specwatch.config.discovery import DiscoverySource, DnsSource, FileSource, HttpSource
from specwatch.config.loading import Config
from specwatch.config.sections import cannot_read
from specwatch.config.target import Target
from specwatch.discovery.pods import PodReader
from specwatch.discovery.target_groups import Group, TargetMaker, parse_groups
from specwatch.domain.units import host_port
from specwatch.errors import (
    ConfigError,
    DiscoveryError,
    DiscoveryReason,
    SpecwatchError,
    extra_missing,
)

if TYPE_CHECKING:
    import dns.resolver
    import requests

Outcome = tuple[Group, ...] | SpecwatchError
Read = Callable[[], Mapping[str, Outcome]]
"""Reads a source: the groups of each of its parts (a file, a name), or why it cannot be read."""

_LARGEST = 64 << 20
_DNS_SECONDS = 10.0
_PIECE = 1 << 16
_JSON = ("application/json", 'application/json;charset="utf-8"', "application/json;charset=utf-8")


def reader(source: DiscoverySource) -> Read:
    """What reads a source."""
    settings = source.settings
    if isinstance(settings, FileSource):
        return FileReader(settings)
    if isinstance(settings, HttpSource):
        return HttpReader(settings)
    return DnsReader(settings) if isinstance(settings, DnsSource) else PodReader(settings)


def discover(source: DiscoverySource) -> tuple[list[Target], list[str]]:
    """Read a source once: its targets, and sentences about what is wrong with it."""
    try:
        outcomes = reader(source)().values()
    except SpecwatchError as error:
        return [], [str(error)]
    problems = [str(outcome) for outcome in outcomes if isinstance(outcome, SpecwatchError)]
    groups = [outcome for outcome in outcomes if not isinstance(outcome, SpecwatchError)]
    targets, refused = TargetMaker(source).targets(chain.from_iterable(groups))
    return targets, problems + refused


def known_targets(config: Config) -> tuple[list[Target], list[str]]:
    """The targets of a configuration, those that its sources have now, and the workloads of pods;
    and sentences about what is wrong with a source."""
    targets, problems = [*config.targets], []
    for source in config.discovery:
        found, wrong = discover(source)
        targets += found
        problems += wrong
    workloads = {one.workload.name: one.workload for one in targets if one.workload is not None}
    return [*targets, *workloads.values()], problems


class FileReader:
    """Reads files of target groups, each only when it has changed."""

    def __init__(self, settings: FileSource) -> None:
        self._patterns = settings.files
        self._known: dict[str, tuple[object, Outcome]] = {}

    def __call__(self) -> Mapping[str, Outcome]:
        """The groups in each file that there is."""
        names = [
            name
            for pattern in self._patterns
            for name in sorted(glob.glob(str(pattern), include_hidden=True))
        ]
        self._known = {name: self._look(name) for name in names}
        return {name: outcome for name, (_, outcome) in self._known.items()}

    def _look(self, name: str) -> tuple[object, Outcome]:
        path = Path(name)
        version = None
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._known.get(name)
            if known is not None and known[0] == version:
                return known
            if status.st_size > _LARGEST:
                raise DiscoveryError(DiscoveryReason.TOO_LARGE, f"{name} is larger than 64 MiB")
            is_yaml = path.suffix.lower() != ".json"
            return version, parse_groups(path.read_bytes(), name, is_yaml=is_yaml)
        except OSError as error:
            return None, DiscoveryError(DiscoveryReason.UNREADABLE, cannot_read(path, error))
        except DiscoveryError as error:
            return version, error


class HttpReader:
    """Requests the target groups of an HTTP server."""

    def __init__(self, settings: HttpSource) -> None:
        self._settings = settings

    def __call__(self) -> Mapping[str, Outcome]:
        """The groups that the server lists."""
        try:
            return {self._settings.url: parse_groups(self._fetch(), self._settings.url)}
        except DiscoveryError as error:
            return {self._settings.url: error}

    def _fetch(self) -> bytes:
        # Imported on first use: it takes megabytes that other sources do not need.
        import requests
        import urllib3

        from specwatch.runtime.posting import masked, new_session, root, secrets_in, unreached
        from specwatch.runtime.tls import context_for

        settings, url = self._settings, self._settings.url
        headers: dict[str, str] = {}
        try:
            headers = settings.request_headers()
            tls = context_for(settings, url, f"discovery from {url}")
            seconds = f"{settings.refresh_interval:g}"
            with (
                closing(new_session(tls)) as session,
                session.get(
                    url,
                    headers={
                        "Accept": "application/json",
                        "User-Agent": f"specwatch/{__version__}",
                        "X-Prometheus-Refresh-Interval-Seconds": seconds,
                        **headers,
                    },
                    timeout=settings.timeout,
                    verify=not settings.insecure_skip_verify,
                    stream=True,
                ) as response,
            ):
                return self._body(response)
        except ConfigError as error:
            raise DiscoveryError(DiscoveryReason.CREDENTIALS, str(error)) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            detail = masked(str(root(error)), secrets_in(headers.values()))
            why, sentence = unreached(
                error, url, detail=detail, timeout=settings.timeout, server="the server"
            )
        # Out here it does not have the cause with it: that may hold secrets.
        raise DiscoveryError(DiscoveryReason(why), sentence)

    def _body(self, response: requests.Response) -> bytes:
        url, kind = self._settings.url, response.headers.get("Content-Type", "")
        if response.status_code != 200:
            raise DiscoveryError(
                DiscoveryReason.HTTP_STATUS,
                f"{url} answered {response.status_code}; see the server's log",
            )
        if kind.strip().lower().replace("; ", ";") not in _JSON:
            raise DiscoveryError(
                DiscoveryReason.MALFORMED,
                f"{url} answered with the content type {kind!r}; it must be application/json",
            )
        until = time.monotonic() + self._settings.timeout
        parts: list[bytes] = []
        size = 0
        while piece := response.raw.read1(_PIECE, decode_content=True):
            parts.append(piece)
            size += len(piece)
            if size > _LARGEST:
                raise DiscoveryError(
                    DiscoveryReason.TOO_LARGE, f"the list at {url} is larger than 64 MiB"
                )
            if time.monotonic() > until:
                raise TimeoutError
        return b"".join(parts)


class DnsReader:
    """Looks DNS names up."""

    def __init__(self, settings: DnsSource) -> None:
        self._settings = settings

    def __call__(self) -> Mapping[str, Outcome]:
        """The targets of each name."""
        try:
            import dns.resolver
        except ImportError as error:
            raise ConfigError(extra_missing("discovery by DNS", "dns", error)) from None
        settings = self._settings
        try:
            resolver = dns.resolver.Resolver(configure=settings.server is None)
        except dns.resolver.NoResolverConfiguration as error:
            raise DiscoveryError(
                DiscoveryReason.UNREADABLE, f"/etc/resolv.conf names no DNS server: {error}"
            ) from None
        if settings.server is not None:
            resolver.nameservers = [settings.server.host]
            resolver.port = settings.server.port
        return {name: self._look_up(name, resolver) for name in settings.names}

    def _look_up(self, name: str, resolver: dns.resolver.Resolver) -> Outcome:
        import dns.exception
        import dns.resolver

        kind, port = self._settings.type, self._settings.port
        try:
            answer = resolver.resolve(
                name,
                kind,
                search=True,
                raise_on_no_answer=False,
                lifetime=min(_DNS_SECONDS, self._settings.refresh_interval),
            )
        except dns.resolver.NXDOMAIN:
            return DiscoveryError(
                DiscoveryReason.NOT_FOUND, f"DNS has no name {name}; correct it, or create it"
            )
        except dns.exception.Timeout:
            return DiscoveryError(
                DiscoveryReason.TIMEOUT, f"no DNS server answered about {name} in time"
            )
        except (dns.exception.DNSException, OSError) as error:
            return DiscoveryError(
                DiscoveryReason.UNREACHABLE, f"DNS did not resolve {name}: {error}"
            )
        records = [] if answer.rrset is None else list(answer.rrset)
        if kind == "SRV":
            places = [(one.target.to_text(omit_final_dot=True), one.port) for one in records]
        else:
            places = [(one.address, port) for one in records]
        return (Group(tuple(sorted(host_port(*place) for place in places)), {}),)
