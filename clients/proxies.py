"""The proxy that the environment names for gRPC, and connections through it."""

import base64
import os
import socket
from urllib.parse import unquote, urlsplit

from .endpoint import Endpoint

NAMES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables that name a proxy; the first one that is set counts, as for gRPC's own libraries."""

_ANSWER_BYTES = 16 << 10


def of(endpoint: Endpoint) -> str | None:
    """The address of the proxy to use for a server, None for none; gRPC uses no proxy that wants TLS itself."""
    found = next((value for name in NAMES if (value := os.environ.get(name))), None)
    if found is None or not endpoint.may_use_proxy() or "://" in found.removeprefix("http://"):
        return None
    without = next((value for name in ("no_grpc_proxy", "no_proxy") if (value := os.environ.get(name))), "")
    return None if _is_among(endpoint.host, without) else found


def _is_among(host: str, without: str) -> bool:
    """Whether a host is in a list of names and of ends of names."""
    ends = (entry.strip().lstrip(".").lower() for entry in without.split(","))
    return any(end == "*" or f".{host.lower()}".endswith(f".{end}") for end in ends if end)


def connect(proxy: str, endpoint: Endpoint, seconds: float | None) -> socket.socket:
    """A socket to the server, through the proxy; raises `OSError`."""
    address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        where = (address.hostname or "", address.port or 80)
    except ValueError as error:
        raise ConnectionRefusedError(f"the environment names a proxy that is no address: {error}") from error
    opened = socket.create_connection(where, seconds)
    try:
        target = f"{endpoint.host}:{endpoint.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if address.username is not None:
            user = f"{unquote(address.username)}:{unquote(address.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}")
        opened.sendall("\r\n".join([*lines, "", ""]).encode())
        status = _status(opened)
        if status.split(b" ")[1:2] != [b"200"]:
            raise ConnectionRefusedError(f"the proxy {address.hostname} refused: {status.decode(errors='replace')}")
    except BaseException:
        opened.close()
        raise
    return opened


def _status(opened: socket.socket) -> bytes:
    """The first line of the proxy's answer; its headers are read and dropped, and no byte behind them."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        if not (byte := opened.recv(1)) or len(answer) > _ANSWER_BYTES:
            raise ConnectionResetError("the proxy gave no answer")
        answer += byte
    return answer.split(b"\r\n")[0]
