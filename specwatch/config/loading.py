"""The configuration: one YAML file in, one frozen :class:`Config` out, or every problem at once.

Whatever depends on the machine (environment variables, host name) is an argument. Secrets stay in
files, read when they are used, or in ``SecretStr``; :meth:`Config.public` hides both.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticKnownError

from specwatch.config.discovery import DiscoverySource
from specwatch.config.guard import DEFAULT_URL, Alertmanager, Guard
from specwatch.config.operation import Log, Otlp, Store
from specwatch.config.report import Delivery
from specwatch.config.rules import Rule, Rules, Slo, out_of_place
from specwatch.config.sections import (
    Baselines,
    Database,
    Edges,
    HostName,
    Listen,
    Name,
    Retention,
    SecretFile,
    Section,
    ShardOfTargets,
    Surroundings,
    cannot_read,
    default_from,
    each_once,
    errors_at,
    nearest,
    state_folder,
    unlike_names,
)
from specwatch.config.service import KubernetesService, SupervisedService, SystemdService
from specwatch.config.target import Target
from specwatch.config.yaml_file import Document, KeyPath, Problem, read
from specwatch.domain.units import ListenAddress, local_url, parse_server_url, quoted
from specwatch.errors import ConfigError
from specwatch_tap.temperature import DEFAULT_EDGES, bucket_labels

__all__ = [
    "Config",
    "Database",
    "ListenAddress",
    "Target",
    "from_targets",
    "load",
    "parse",
]

_LARGEST_FILE = 1 << 20


def _servers_apart(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Refuse two targets that are one process: restarting one would restart the other."""
    first: dict[object, int] = {}
    problems: dict[KeyPath, str] = {}
    for index, target in enumerate(targets):
        service = target.service
        if isinstance(service, SystemdService):
            other = first.setdefault((service.scope, service.unit), index)
            path: KeyPath = (index, "service", "unit")
            message = f"{quoted(service.unit)} is the unit of targets[{other}] too"
        elif isinstance(service, KubernetesService):
            key = service.model_dump(include={"kubeconfig", "context", "namespace", "workload"})
            other = first.setdefault(tuple(key.items()), index)
            path = (index, "service", "workload")
            message = f"{quoted(service.workload)} is the workload of targets[{other}] too"
        elif isinstance(service, SupervisedService):
            other = first.setdefault(SupervisedService, index)
            path = (index, "service")
            message = f"targets[{other}] is supervised too, and specwatch runs one vLLM"
        else:
            continue
        if other != index:
            problems[path] = f"{message}; leave it at the target that it serves"
    if problems:
        raise errors_at(problems)
    return targets


def default_database(environ: Mapping[str, str], folder: Path = Path()) -> str:
    """URL of the SQLite file that belongs to a configuration in a folder, or to none."""
    return f"sqlite:///{state_folder(environ, folder) / 'specwatch.db'}"


def _default_database(surroundings: Surroundings) -> str:
    return default_database(surroundings.environ, surroundings.folder)


class Config(Section):
    """The whole configuration file."""

    daemon: Annotated[Name, default_from(lambda surroundings: surroundings.hostname)] = Field(
        default=None, validate_default=True
    )
    """Name of this daemon, in a database that several daemons share; of several processes of one
    name, one watches and the others stand by. Default: the host name."""
    database: Annotated[Database, default_from(_default_database)] = Field(
        default=None, validate_default=True
    )
    """Where the history is kept: a database URL, or a mapping of `url` and `password_file`.
    Default: an SQLite file in `/var/lib/specwatch` for a configuration in `/etc/specwatch`,
    else in the user's state folder."""
    shard: ShardOfTargets | None = Field(default=None, examples=["2/3", "${POD_NAME}/3"])
    """The part of the targets that this daemon watches, such as `2/3` for the last of three parts
    `0/3`, `1/3` and `2/3`; the number may be that at the end of the name of a pod. All daemons of
    the parts have the same `daemon` and the same targets. Default: all targets."""
    listen: Listen = ListenAddress("127.0.0.1", 9469)
    """Address of the daemon's own HTTP server."""
    listen_token_file: SecretFile | None = None
    """File with the bearer token that every path except `/healthz` and `/readyz` requires; it is
    read for each request. Default: no authentication."""
    external_url: str = Field(
        default=None, validate_default=True, examples=["https://specwatch.example.com"]
    )
    """URL at which people reach this daemon, for links in alerts and dashboards, and from a daemon
    that stands by. Default: that of `listen`, with the host name in place of `0.0.0.0`; where one
    stands by, in place of a loopback address too."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Host names that requests may use, besides loopback names, `listen` and the host name."""
    temperature_buckets: Edges = DEFAULT_EDGES
    """Upper ends of the temperature buckets, ascending; the tap must have the same."""
    discovery: Annotated[tuple[DiscoverySource, ...], each_once("source")] = ()
    """Where further targets are found while the daemon runs. One with the name or URL of another
    is left out: `targets` come first, then the sources in their order."""
    targets: Annotated[
        tuple[Target, ...], unlike_names("targets"), AfterValidator(_servers_apart)
    ] = Field(default=(), validate_default=True, examples=["[{url: 'http://127.0.0.1:8000'}]"])
    """The servers to watch; at least one without `discovery`."""
    rules: Rules = Rules()
    """Which rules apply."""
    slos: Annotated[tuple[Slo, ...], unlike_names("slos")] = ()
    """Latency objectives."""
    guard: Guard = Guard()
    """What the guard may do."""
    alertmanager: Alertmanager | None = None
    """Alertmanagers that receive alerts. Default: none."""
    otlp: Otlp | None = None
    """A collector of OpenTelemetry that receives the exported metrics. Default: none."""
    report: Delivery | None = None
    """Where the weekly report is written and sent. Default: it is not delivered."""
    baseline: Baselines = Baselines()
    """How long baselines hold."""
    retention: Retention = Retention()
    """How long history is kept."""
    log: Log = Log()
    """How the daemon logs."""
    store: Store = Store()
    """How much is kept in memory while the database is unavailable."""

    @field_validator("external_url", mode="before")
    @classmethod
    def _where_it_listens(cls, value: object, info: ValidationInfo) -> str:
        listen = info.data.get("listen")
        if value is not None or listen is None:
            return DEFAULT_URL if value is None else parse_server_url(value)
        anywhere = listen.host in ("0.0.0.0", "::")  # noqa: S104
        host = info.context.hostname if info.context and anywhere else listen.host
        return local_url(host, listen.port)

    @property
    def runbook_url(self) -> str:
        """Where the runbook is."""
        configured = self.alertmanager and self.alertmanager.runbook_url
        return configured or f"{self.external_url}/runbook"

    @field_validator("targets", mode="before")
    @classmethod
    def _something_to_watch(cls, value: object, info: ValidationInfo) -> object:
        if not info.data.get("discovery", True):
            if value == ():
                raise PydanticKnownError("missing")
            if value == []:
                raise ValueError("is empty; list at least one server to watch")
        return value

    @model_validator(mode="after")
    def _can_be_divided(self) -> Self:
        if self.shard is None:
            return self
        problems: dict[KeyPath, str] = {}
        if "daemon" not in self.model_fields_set:
            problems["shard",] = "needs the key daemon: one name, the same for all parts"
        for index, target in enumerate(self.targets):
            if isinstance(target.service, SupervisedService):
                message = "specwatch runs this vLLM itself, so no other daemon can watch it"
                problems["targets", index, "service"] = f"{message}; remove shard"
        if problems:
            raise errors_at(problems)
        return self

    @field_validator("rules")
    @classmethod
    def _scopes_that_there_are(cls, value: Rules, info: ValidationInfo) -> Rules:
        found_later = info.data.get("discovery", ())
        names = [] if found_later else [target.name for target in info.data.get("targets", ())]
        edges = info.data.get("temperature_buckets")
        problems = out_of_place(value, names, bucket_labels(edges) if edges else ())
        if problems:
            raise errors_at(problems)
        return value

    def effective_rules(self) -> tuple[Rule, ...]:
        """All rules that apply, with the actions that the guard may take."""
        return self.rules.effective(act_on_assumptions=self.guard.act_on_assumptions)

    def public(self) -> dict[str, Any]:
        """The configuration in the syntax of a file, every secret masked."""
        return self.model_dump(mode="json", by_alias=True)


def load(path: Path, *, environ: Mapping[str, str], hostname: str) -> Config:
    """The configuration in the file at ``path``; ConfigError lists all that is wrong with it.

    Relative paths in the file start at the file's folder.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(cannot_read(path, error)) from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than 1 MiB; this is not a specwatch configuration")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        message = f"the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError(f"{path}:{line}: {message}") from None
    return parse(text, str(path), environ=environ, hostname=hostname, folder=path.absolute().parent)


def parse(
    text: str, where: str, *, environ: Mapping[str, str], hostname: str, folder: Path = Path()
) -> Config:
    """The configuration in ``text``; ``where`` names its origin in messages."""
    document = read(text, environ)
    if document.readable and document.data is None and not document.problems:
        message = "is empty; list at least one server to watch under targets"
        raise ConfigError(f"{where}: {message}")
    return _validated(document, where, Surroundings(environ, hostname, folder))


def from_targets(
    urls: Sequence[str],
    *,
    environ: Mapping[str, str],
    hostname: str,
    settings: Mapping[str, object] | None = None,
) -> Config:
    """The configuration for servers named on the command line.

    ``settings`` are further top-level keys, valued as in a file: ``{"listen": "127.0.0.1:0"}``.
    """
    document = Document({"targets": [{"url": url} for url in urls], **(settings or {})})
    return _validated(document, "command line", Surroundings(environ, hostname, Path()))


def _validated(document: Document, where: str, surroundings: Surroundings) -> Config:
    problems = list(document.problems)
    if document.readable:
        reported = {problem.path for problem in problems}
        try:
            config = Config.model_validate(document.data, context=surroundings)
        except ValidationError as error:
            messages = [_problem(details, document) for details in error.errors(include_url=False)]
            # The None in place of a value with a problem causes further problems.
            problems += [
                problem
                for problem in messages
                if not any(problem.path[:n] in reported for n in range(1, len(problem.path) + 1))
            ]
        if not problems:
            return config
    raise ConfigError("\n".join(_lines(problems, document, where)))


def _lines(problems: Sequence[Problem], document: Document, where: str) -> Iterator[str]:
    placed = [(p.line or _line(p.path, document), p) for p in problems]
    for line, problem in sorted(placed, key=lambda entry: entry[0] or 0):
        parts = [f"{where}:{line}" if line else where, _text(problem.path), problem.message]
        yield ": ".join(part for part in parts if part)


def _line(path: KeyPath, document: Document) -> int | None:
    for end in range(len(path), -1, -1):
        if path[:end] in document.lines:
            return document.lines[path[:end]]
    return None


def _text(path: KeyPath) -> str:
    parts = (
        f"[{p}]" if isinstance(p, int) else f".{p if p.isprintable() else quoted(p)}" for p in path
    )
    return "".join(parts).removeprefix(".")


def _problem(details: ErrorDetails, document: Document) -> Problem:
    path, section = _located(details["loc"])
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(path, f"unknown key; {nearest(str(path[-1]), section.written_keys())}")
    if kind == "missing":
        examples = section.written_keys()[str(path[-1])].examples or [""]
        return Problem(path, f'is missing; add it, like "{path[-1]}: {examples[0]}"')
    if kind == "union_tag_not_found":
        return Problem(
            path, 'has no kind; add "kind: systemd", or else supervised, command or kubernetes'
        )
    if kind == "union_tag_invalid":
        message = f"{quoted(value['kind'])} is not one of {context['expected_tags']}"
        return Problem((*path, "kind"), message)
    # A section may be written in short as text: then its keys are not in the file.
    while document.lines and path and path not in document.lines and path[:-1] in document.lines:
        path = path[:-1]
    if kind == "value_error":
        return Problem(path, str(context["error"]))
    if kind == "literal_error":
        return Problem(path, f"{quoted(value)} is not one of {context['expected']}")
    expected = next((text for part, text in _EXPECTED.items() if kind.startswith(part)), None)
    if expected is None:
        return Problem(path, details["msg"])
    remedy = "; put it in quotes" if expected == "text" and _kind(value) in _UNQUOTED else ""
    return Problem(path, f"expected {expected}, found {_kind(value)}{remedy}")


_EXPECTED = {
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "model": "a mapping of keys to values",
    "dict": "a mapping of keys to values",
    "mapping": "a mapping of keys to values",
}
_UNQUOTED = ("true or false", "a number")


def _kind(value: object) -> str:
    """The kind of a value; the value itself may be a secret."""
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number"}
    return {**kinds, list: "a list", dict: "a mapping"}.get(type(value), "nothing")


def _located(location: KeyPath) -> tuple[KeyPath, type[Section]]:
    """The path in the file of what pydantic locates, and the section that has its last key.

    Pydantic's location of what is wrong in a service has the kind of the service too.
    """
    section: type[Section] = Config
    inner: dict[object, type[Section]] = {}
    path: list[str | int] = []
    for key in location:
        if key in inner:
            section, inner = inner[key], {}
            continue
        if len(inner) == 1 and isinstance(key, str):
            (section,) = inner.values()
        if isinstance(key, str) and key in section.written_keys():
            inner = {
                typing.get_args(field.annotation)[0]
                if (field := one.model_fields.get("kind"))
                else "": one
                for one in sections_in(section.written_keys()[key].annotation)
            }
        path.append(key)
    return tuple(path), section


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in sections_in(argument)]
