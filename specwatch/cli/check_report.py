"""Checks of what the delivery of reports would need: nothing is sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from specwatch.config.report import Delivery
from specwatch.errors import SpecwatchError
from specwatch.report.mail import Mail
from specwatch.report.webhook import Hook

_PATIENCE = 5.0
"""Seconds that a server may take to answer."""


def checks(section: Delivery) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield what there is to ask: the folder, the mail server, each webhook."""
    yield lambda: _folder(section)
    if section.email is not None:
        mail = Mail(section.email, socket.gethostname())
        yield lambda: _asked(f"mail server {mail.where}", mail.probe)
    for each in section.webhooks:
        hook, what = Hook(each), f"webhook {each.name}"
        yield lambda hook=hook, what=what: _asked(what, hook.probe)  # type: ignore[misc]


def _folder(section: Delivery) -> dict[str, Any]:
    what, folder = f"reports in {section.directory}", section.directory.absolute()
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except PermissionError as error:
        detail = f"this user may not look into {error.filename}; use sudo"
        return {"what": what, "ok": False, "detail": detail}
    if not there.is_dir():
        return {"what": what, "ok": False, "detail": f"{there} is no folder"}
    if not os.access(there, os.W_OK | os.X_OK):
        return {"what": what, "ok": False, "detail": f"this user may not write in {there}"}
    detail = "they can be written" if there == folder else "the folder will be made"
    return {"what": what, "ok": True, "detail": detail}


def _asked(what: str, probe: Callable[[float], str]) -> dict[str, Any]:
    try:
        return {"what": what, "ok": True, "detail": probe(_PATIENCE)}
    except SpecwatchError as error:
        return {"what": what, "ok": False, "detail": str(error)}
