"""TLS contexts: how servers' certificates are checked."""

from __future__ import annotations

import functools
import os
import ssl
from pathlib import Path

from specwatch.config.http_access import HttpAccess
from specwatch.config.target import Target
from specwatch.errors import ConfigError


def tls_context(target: Target, url: str | None = None) -> ssl.SSLContext | None:
    """How to check the certificate of a target, or of its proxy at ``url``; None without TLS."""
    return context_for(target, url or target.url, f"target {target.name}")


def context_for(section: HttpAccess, url: str, what: str) -> ssl.SSLContext | None:
    """How to check the certificate of ``url``; None without TLS.

    Servers with the same authority share a context, which takes a megabyte. Raises ConfigError,
    which begins with ``what``, for a ``ca_file`` that cannot be used.
    """
    if not url.startswith("https:"):
        return None
    if section.insecure_skip_verify:
        return _unchecked()
    if section.ca_file is None:
        return _checked(None, 0)
    try:
        return _checked(section.ca_file, os.stat(section.ca_file).st_mtime_ns)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"{what}: ca_file {section.ca_file} cannot be used"
            f" ({error.strerror or error}); give a file of certificates in PEM format"
        ) from error


@functools.lru_cache(maxsize=64)
def _checked(ca_file: Path | None, _changed: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


@functools.cache
def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
