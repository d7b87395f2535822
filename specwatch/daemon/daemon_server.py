"""The daemon's HTTP server: what it answers, under which names, and where people reach it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specwatch.config.loading import Config
from specwatch.config.sections import read_secret
from specwatch.domain.units import is_loopback, local_url
from specwatch.runtime.http_server import HttpServer
from specwatch.status import DaemonStatus
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from specwatch.web import api, exporter
from specwatch.web.middleware import host_names

if TYPE_CHECKING:
    from specwatch.report.model import Report


def server_of(
    config: Callable[[], Config], status: Callable[[], DaemonStatus], store: Store
) -> HttpServer:
    """The server, not started; it listens as the first configuration says."""

    def token() -> str | None:
        file = config().listen_token_file
        return None if file is None else read_secret(file)

    def report(**chosen: Any) -> Report:
        # Imported on first use: it takes megabytes that watching does not need.
        from specwatch.report.reader import read_report

        return read_report(store, config=config(), **chosen)

    listen = config().listen
    application = api.application(
        status,
        store.windows,
        store.verdicts,
        exporter.registry(status, proc="/proc"),
        report,
        steps=GuardBook(store).history,
        hosts=lambda: host_names(config()),
        monitored=not is_loopback(listen.host),
        token=token,
    )
    return HttpServer(application, listen.host, listen.port, name="http", bounded=True)


def page_address(config: Config, server: HttpServer) -> str:
    """The URL of the page of a server that listens, to show on other machines: ``external_url`` if
    it is configured, else with the host name in place of an address that each machine has."""
    if "external_url" in config.model_fields_set:
        return config.external_url
    here = is_loopback(server.host)
    return local_url(socket.gethostname() if here else server.host, server.port)
