"""Calls to the HTTP API of a running tritonserver, with the secret of its admin APIs.

An address is `host:port` of the HTTP endpoint, with or without `http://` before it.
"""

import http
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import NoneType
from typing import Any

from serve.management import admin
from triton_batching.terminal import Failure, Mistake

TIMEOUT_S = 5.0
AGAIN_S = 0.2
# Metrics of a thousand models are below 1 MiB. An address of something else may send without end.
LARGEST_BYTES = 64 << 20
# The paths of the APIs that ask for the secret (admin.APIS). No other call carries it: while a server starts, another
# program may have its port.
RESTRICTED = ("/v2/repository/", "/trace/setting", "/v2/logging", "sharedmemory/")
# A proxy that the environment names is not used: it may reach another machine's `localhost`.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Failure):
    """A server gave no usable answer."""


class UnreachableError(ServerError, Mistake):
    """No tritonserver answers at the address."""


class TimedOutError(UnreachableError):
    """The server took the call and did not answer in time."""


class RefusedError(ServerError, Mistake):
    """The server answered with an error, for example because it has no such model."""


class RestrictedError(RefusedError):
    """The server asks for a secret that this user does not have."""


def base(address: str) -> str:
    """The address as `http://host:port`, without a slash at its end."""
    return "http://" + address.removeprefix("http://").rstrip("/")


def call(
    address: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    expected: type = dict,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The JSON that the server answers to GET /v2/`path`, or to POST with a `body`.

    `expected` is the answer's type, dict or list; with `NoneType` the answer is not read. Raises `ServerError`.
    """
    url = f"{base(address)}/v2/{path}".rstrip("/")
    content = text(url, body, timeout_s=timeout_s)
    if expected is NoneType:
        return None
    if not content and body is None:
        # Seen once, right after a start.
        time.sleep(AGAIN_S)
        content = text(url, timeout_s=timeout_s)
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnreachableError(_elsewhere(url, error)) from error
    items = answer if isinstance(answer, list) else []
    if not isinstance(answer, expected) or not all(isinstance(item, dict) for item in items):
        raise UnreachableError(_elsewhere(url, f"the answer is {content[:40]!r}"))
    return answer


def text(url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S) -> str:
    """The answer of `url` as text, at most `LARGEST_BYTES`; raises `ServerError`."""
    headers = admin.headers(url) if any(part in url for part in RESTRICTED) else {}
    data = None
    if body is not None:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    try:
        with _DIRECT.open(urllib.request.Request(url, data=data, headers=headers), timeout=timeout_s) as answer:
            content: bytes = answer.read(LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise _refused(url, error) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise TimedOutError(f"{url}: no answer within {timeout_s:g} s.") from error
        raise UnreachableError(_elsewhere(url, error)) from error
    if len(content) > LARGEST_BYTES:
        raise UnreachableError(_elsewhere(url, f"more than {LARGEST_BYTES >> 20} MiB"))
    return content.decode(errors="replace")


def is_ready(address: str) -> bool:
    """Whether the server and all its models are ready."""
    try:
        text(f"{base(address)}/v2/health/ready", timeout_s=1.0)
    except ServerError:
        return False
    return True


def _refused(url: str, error: urllib.error.HTTPError) -> RefusedError:
    if error.code == http.HTTPStatus.FORBIDDEN:
        return RestrictedError(
            f"{url}: the server keeps this for the user who started it ({error}). Run this on its machine, as the user "
            "who started it."
        )
    return RefusedError(f"{url}: the server answered {error.code}: {error.read(300).decode(errors='replace')}")


def _elsewhere(url: str, why: object) -> str:
    return (
        f"{url}: no Triton server answers there ({why}). Give its HTTP address (not that of gRPC), for example "
        "http://localhost:8000."
    )
