"""The API of Kubernetes: lightkube's client for a cluster, and its errors as ours.

lightkube is the smallest of the kept client libraries: 6 MB with all that it needs and specwatch
does not, and 4 MB of memory beside the daemon's modules. It is imported when a client is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specwatch.config.service import KubernetesAccess
from specwatch.errors import ConfigError, KubernetesError, KubernetesReason, extra_missing

if TYPE_CHECKING:
    from lightkube import Client

_REASONS = {
    401: KubernetesReason.UNAUTHORIZED,
    403: KubernetesReason.FORBIDDEN,
    404: KubernetesReason.NOT_FOUND,
    409: KubernetesReason.CONFLICT,
    429: KubernetesReason.UNREACHABLE,
}
_REMEDIES = {
    KubernetesReason.UNAUTHORIZED: "check the token or the certificate of the account",
    KubernetesReason.FORBIDDEN: "a Role has to allow it",
    KubernetesReason.CONFLICT: "it was changed meanwhile",
}


def kubernetes_client(access: KubernetesAccess, *, timeout: float = 10.0) -> Client:
    """A client of that cluster; nothing is asked yet.

    Its ``namespace`` is that of the account or of the context. An answer to a request may keep
    silent for ``timeout`` seconds, but a watch for as long as it likes. Raises ConfigError where
    lightkube is not installed, and where there is no account or context that can be used.
    """
    try:
        import httpx2
        import yaml
        from lightkube import Client, KubeConfig
        from lightkube.core.exceptions import ConfigError as Unusable
        from msgspec import ValidationError
    except ImportError as error:
        raise ConfigError(extra_missing("Kubernetes", "kubernetes", error)) from None
    path = access.kubeconfig
    try:
        config = KubeConfig.from_env() if path is None else KubeConfig.from_file(path)
        # The environment's proxies and authorities are heeded, as kubectl does.
        chosen = config.get(access.context)
        return Client(chosen, timeout=httpx2.Timeout(timeout), field_manager="specwatch")
    except (
        Unusable,
        OSError,
        yaml.YAMLError,
        ValidationError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,  # not the structure of a kubeconfig
    ) as error:
        where = path or os.environ.get("KUBECONFIG", "~/.kube/config")
        why = f"has no {error}" if isinstance(error, KeyError) else f"cannot be used: {error}"
        account = "" if path else "this is not a pod with a service account, and "
        raise ConfigError(
            f"{account}the kubeconfig {where} {why}; give the path of another one, or a context"
            " that is in it"
        ) from None


@contextmanager
def kubernetes_errors(client: Client) -> Iterator[None]:
    """Raise KubernetesError for what requests of the client raise in the block."""
    import httpx2
    from lightkube import ApiError
    from lightkube.core.exceptions import ConfigError as Unusable
    from msgspec import MsgspecError

    server = client.config.cluster.server
    try:
        yield
    except ApiError as error:
        code = error.status.code or 0
        reason = _REASONS.get(code, KubernetesReason.REFUSED)
        if code >= 500:
            reason = KubernetesReason.UNREACHABLE
        message = f"Kubernetes at {server}: {error.status.message or error.status.reason} ({code})"
        remedy = _REMEDIES.get(reason)
        raise KubernetesError(reason, f"{message}; {remedy}" if remedy else message) from None
    except httpx2.HTTPError as error:
        if isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 404:
            raise KubernetesError(
                KubernetesReason.NOT_FOUND,
                f"Kubernetes at {server} does not know the path {error.request.url.path} (404);"
                " install the definition of this kind",
            ) from None
        why = str(error) or type(error).__name__
        raise KubernetesError(
            KubernetesReason.UNREACHABLE, f"Kubernetes at {server} does not answer: {why}"
        ) from None
    except (KeyError, ValueError, MsgspecError) as error:
        raise KubernetesError(
            KubernetesReason.UNREACHABLE,
            f"what answers at {server} is not Kubernetes: {type(error).__name__}: {error}",
        ) from None
    except (Unusable, OSError) as error:  # a program of the kubeconfig that gives tokens
        raise KubernetesError(
            KubernetesReason.UNAUTHORIZED, f"the account for {server} cannot be used: {error}"
        ) from None
