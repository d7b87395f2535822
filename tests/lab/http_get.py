"""GET over HTTP, without a proxy and without any code of specwatch."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


def get(url: str, timeout: float = 60.0) -> tuple[int, str]:
    """Status and body of a GET."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def page(url: str) -> str:
    """The body of a GET that must succeed."""
    status, body = get(url)
    assert status == 200, f"{url}: {body}"
    return body


def is_ok(url: str, timeout: float = 60.0) -> bool:
    """Whether a GET is answered with 200 now."""
    try:
        return get(url, timeout)[0] == 200
    except (OSError, http.client.HTTPException):
        return False
