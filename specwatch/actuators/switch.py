"""Gives orders to the switch of a running vLLM, in its directory or over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import requests

from specwatch import __version__
from specwatch.actuators.base import ANYTIME, Claim
from specwatch.config.sections import present_secret
from specwatch.config.target import Target
from specwatch.errors import ActuatorError
from specwatch.runtime.posting import masked, new_session, root, secrets_in, unreached
from specwatch.runtime.tls import tls_context
from specwatch_tap import switch_files
from specwatch_tap.orders import (
    LARGEST,
    LOCK_FILE,
    ORDER_FILE,
    PATH,
    STATE_FILE,
    Order,
    Schedule,
    SwitchState,
    decode,
    encode,
    objection,
)

_ANSWER_SECONDS = 5.0
"""A server looks ten times a second; one that is stopped, or starts, does not."""
_LOOK_SECONDS = 0.05
_HEADERS = {"User-Agent": f"specwatch/{__version__}", "Accept-Encoding": "identity"}


class _Channel(Protocol):
    """Carries documents; raises ActuatorError."""

    def read(self) -> bytes:
        """The state of the server."""

    def write(self, order: bytes) -> None:
        """Give it an order."""

    def close(self) -> None:
        """Close connections."""


class _Directory:
    """Documents as files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self) -> bytes:
        try:
            switch_files.check_directory(self._directory)
            state = switch_files.read(self._directory / STATE_FILE)
            if switch_files.is_locked(self._directory / LOCK_FILE):
                return state
        except FileNotFoundError:
            raise ActuatorError(
                f"there is no {self._directory / STATE_FILE}: start vLLM with what `specwatch tap"
                " flags --switch` prints, and this directory",
                changed=False,
            ) from None
        except OSError as error:
            raise ActuatorError(f"the switch cannot be read: {error}", changed=False) from None
        raise ActuatorError(
            f"no vLLM uses {self._directory} now: is it starting, or started without the switch?",
            changed=False,
            retry=True,
        )

    def write(self, order: bytes) -> None:
        try:
            switch_files.write(self._directory / ORDER_FILE, order)
        except OSError as error:
            detail = f"no order can be written in {self._directory}: {error}"
            raise ActuatorError(
                f"{detail}; its group needs the right to write, and this user the group",
                changed=False,
            ) from None

    def close(self) -> None:
        """Files are open only for a moment."""


class _Http:
    """Documents as bodies of requests to vLLM's API server."""

    def __init__(self, target: Target, token_file: Path) -> None:
        self._target = target
        self._token_file = token_file
        self._session = new_session(tls_context(target))

    def read(self) -> bytes:
        return self._ask("GET")

    def write(self, order: bytes) -> None:
        self._ask("PUT", order)

    def close(self) -> None:
        self._session.close()

    def _ask(self, method: str, body: bytes | None = None) -> bytes:
        url = self._target.url + PATH
        token = present_secret(self._token_file, f"target {self._target.name}: switch")
        headers = {**self._target.request_headers(), "Authorization": f"Bearer {token}"}
        try:
            with self._session.request(
                method,
                url,
                data=body,
                headers={**_HEADERS, **headers},
                timeout=self._target.timeout,
                verify=not self._target.insecure_skip_verify,
                allow_redirects=False,
                stream=True,
            ) as response:
                answer = bytes(response.raw.read(LARGEST + 1))
        except (requests.RequestException, OSError) as error:
            secrets = secrets_in(headers.values())
            _, why = unreached(
                error,
                url,
                detail=masked(str(root(error)), secrets),
                timeout=self._target.timeout,
                server="vLLM",
            )
        else:
            if response.status_code == requests.codes.ok:
                return answer
            text = masked(answer.decode("utf-8", "replace"), secrets_in(headers.values()))
            why = f"{url} answered {response.status_code} ({text})"
            if response.status_code == requests.codes.not_found:
                why += "; start vLLM with what `specwatch tap flags --switch` prints"
        # An order whose answer is lost may be followed.
        raise ActuatorError(why, changed=method == "PUT", retry=True)


class SwitchClient:
    """The switch of one target, for one thread at a time. Methods raise ActuatorError."""

    def __init__(self, target: Target, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """The target has a ``switch``. Raises ConfigError for certificates that cannot be used."""
        access = target.switch
        if access is None:
            raise ValueError(f"target {target.name} has no switch")
        self._channel: _Channel = (
            _Http(target, access.token_file)
            if access.token_file is not None
            else _Directory(access.directory or Path())
        )
        self._sleep = sleep

    def state(self) -> SwitchState:
        """The state of the server."""
        try:
            return decode(self._channel.read(), SwitchState)
        except ValueError as error:
            raise ActuatorError(f"the state of the switch: {error}", changed=False) from None

    def order(
        self,
        ordered: int | Schedule | None,
        *,
        lease: float,
        by: str,
        claim: Claim = ANYTIME,
    ) -> SwitchState:
        """Give an order for ``lease`` seconds, and return the state in which it is followed.

        ``ordered`` is a number of draft tokens, a schedule without gaps, or None for the launch
        mode. Where another order comes between the look and this one, its number is taken and this
        one refused: so the lease of ``claim`` is checked between the two.
        """
        before = self.state()
        order = Order(
            server=before.server,
            number=before.number + 1,
            draft_tokens=None if isinstance(ordered, tuple) else ordered,
            schedule=ordered if isinstance(ordered, tuple) else (),
            lease=lease,
            by=by,
        )
        refused = objection(order, before)
        if refused:
            raise ActuatorError(f"the server follows no such order: {refused}", changed=False)
        claim.require()
        self._channel.write(encode(order))
        for _ in range(round(_ANSWER_SECONDS / _LOOK_SECONDS)):
            state = self.state()
            if state.server != before.server:
                raise ActuatorError("vLLM was restarted meanwhile", changed=False, retry=True)
            if state.number >= order.number:
                break
            self._sleep(_LOOK_SECONDS)
        else:
            raise ActuatorError(
                f"the order was not read within {_ANSWER_SECONDS:g} s: is vLLM stopped, or"
                " the directory that of a server that has ended?",
                changed=True,
                retry=True,
            )
        if state.refused or state.ordered != ordered:
            why = state.refused or "another order came at the same time"
            raise ActuatorError(f"the order is not followed: {why}", changed=True, retry=True)
        return state

    def close(self) -> None:
        """Close connections; the server goes on as ordered until the lease ends."""
        self._channel.close()
