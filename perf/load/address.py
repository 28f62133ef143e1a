"""Addresses of servers: which are on this machine, and what tritonclient's own clients need for one."""

import re

from clients.errors import AddressError

HERE = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine in an address."""

_PLAIN = re.compile(r"[^\s/@?#,]+:[0-9]{1,5}")


def checked(url: str) -> str:
    """The address if it is host:port without a scheme; raises `AddressError` otherwise."""
    if not _PLAIN.fullmatch(url):
        raise AddressError(
            f"{url}: not host:port. Write it without a scheme, for example localhost:8001 or [::1]:8001.", url=url
        )
    return url


def channel_arguments(url: str) -> list[tuple[str, int]]:
    """gRPC's options for tritonclient's client of the server at `url`: no proxy for one on this machine."""
    return [("grpc.enable_http_proxy", 0)] if checked(url).rpartition(":")[0] in HERE else []
