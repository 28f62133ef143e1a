"""The addresses of a server, one for each protocol; TLS, and the headers of every call."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import _admin_secret
from .errors import AddressError, InvalidInputError, TlsError, TransportError

DEFAULT_URL = "localhost"
PORTS = {"http": 8000, "grpc": 8001}
"""Triton's own ports, for a `url` without one."""

TransportName = Literal["auto", "shared_memory", "grpc", "http"]
NAMES = ("auto", "shared_memory", "grpc", "http")

HEADER_BYTES = 8 << 10
"""The limit for the names and values of all headers together; gRPC servers refuse more."""

_HOST = r"(?P<host>[^\s/@?#:,\[\]\x00-\x20\x7f-\U0010ffff]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])"
_ADDRESS = re.compile(rf"(?:(?P<scheme>grpcs?|https?)://)?{_HOST}:(?P<port>[0-9]{{1,5}})(?P<slash>/?)")
_BARE = re.compile(_HOST)
_SEVERAL = re.compile(r"dns:///[^\s/,]+:[0-9]{1,5}|ipv[46]:[^\s/,]+:[0-9]{1,5}(?:,[^\s/,]+:[0-9]{1,5})*")
_NAME = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Headers that the protocols set themselves, those that would change the form of an answer, and gRPC's own names.
_RESERVED = re.compile(
    r"grpc-.*|.*-bin|connection|content-.*|host|te|transfer-encoding|inference-header-content-length"
    r"|accept-encoding|keep-alive|upgrade|proxy-connection|expect|trailer"
)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The PEM files for TLS; the server's certificate is always verified.

    `ca` holds the certificates to trust; None means those of the system. `certificate` and `key` are the client's own,
    for a server that asks for one. Raises `TlsError` for a certificate without its key, and for an unusable file.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise TlsError("Tls: a client certificate needs its key, and a key its certificate. Give both, or neither.")
        self.context()

    def context(self) -> ssl.SSLContext:
        """The context for HTTPS."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                # Without a password: openssl would ask for one at the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            files = ", ".join(str(file) for file in (self.ca, self.certificate, self.key) if file)
            raise TlsError(
                f"{files}: not usable for TLS ({error}). Give readable files in PEM, the key without a password."
            ) from error
        return context

    def contents(self) -> tuple[bytes | None, ...]:
        """The bytes of `ca`, `key` and `certificate`, in gRPC's order; None for a file that is not set."""
        trusted = self.ca or ssl.get_default_verify_paths().cafile
        return tuple(Path(file).read_bytes() if file else None for file in (trusted, self.key, self.certificate))


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server answers over one protocol. `url` is what the user wrote, `target` the address in gRPC's form.

    `host` is "" for several servers, over which gRPC spreads the calls.
    """

    url: str
    protocol: str
    target: str
    host: str
    port: int
    tls: Tls | None
    headers: tuple[tuple[str, str], ...] = field(repr=False)  # they may hold a secret

    def secret(self) -> dict[str, str]:
        """What a call about shared memory carries beside the headers: the secret of our own server."""
        extra = _admin_secret.headers(self.target)
        return {name: value for name, value in extra.items() if name not in dict(self.headers)}


def addresses(
    url: str, transport: str, *, tls: Tls | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Address]:
    """The addresses in a `url` by protocol, "http" and "grpc", those that `transport` may use.

    Raises `AddressError`, and `InvalidInputError` for a header that cannot be sent.
    """
    checked, text = _checked(headers or {}), url if isinstance(url, str) else ""
    if _SEVERAL.fullmatch(text):
        found = {"grpc": Address(url=url, protocol="grpc", target=url, host="", port=0, tls=tls, headers=checked)}
    elif _BARE.fullmatch(text) and _is_possible(text, 1):
        found = {name: _at(f"{url}:{port}", url, tls, checked, name) for name, port in PORTS.items()}
    else:
        listed = [_at(each.strip(" "), url, tls, checked, transport) for each in str(url).split(",")]
        found = {address.protocol: address for address in listed}
        if len(found) < len(listed):
            raise AddressError(
                f"{url}: two addresses of one protocol. Write ipv4:A:PORT,B:PORT for several servers over gRPC, or put "
                "a front door before them: triton-batching cluster up PLAN.toml.",
                url=url,
            )
    wanted = ("http",) if transport == "http" else ("grpc",) if transport == "grpc" else ("http", "grpc")
    if not any(name in found for name in wanted):
        there, needed = ("n HTTP", "gRPC") if "http" in found else (" gRPC", "HTTP")
        raise AddressError(
            f'{url}: a{there} address, and transport="{transport}" needs the {needed} one. Give the address of the '
            f"{needed} port as {needed.lower()}:// or {needed.lower()}s://, or another transport.",
            url=url,
        )
    return {name: found[name] for name in wanted if name in found}


def _at(entry: str, url: str, tls: Tls | None, headers: tuple[tuple[str, str], ...], transport: str) -> Address:
    """One address, written with or without a scheme."""
    match = _ADDRESS.fullmatch(entry)
    if not match or (match["slash"] and not match["scheme"]) or not _is_possible(match["host"], int(match["port"])):
        raise AddressError(
            f"{url}: not an address. Write host:port, for example localhost:8001 or [::1]:8001; http://host:port for "
            "HTTP; grpcs://host:port or https://host:port for TLS; a host alone has the ports 8000 and 8001.",
            url=str(url),
        )
    scheme = match["scheme"] or ("http" if transport == "http" else "grpc")
    if tls and match["scheme"] in ("grpc", "http"):
        raise AddressError(f"{url}: {scheme}:// is without TLS, and tls= was given. Write {scheme}s://.", url=url)
    return Address(
        url=url,
        protocol=scheme.removesuffix("s"),
        target=f"{match['host']}:{match['port']}",
        host=match["host"],
        port=int(match["port"]),
        tls=tls or (Tls() if scheme.endswith("s") else None),
        headers=headers,
    )


def _is_possible(host: str, port: int) -> bool:
    """Whether the port and the labels of the host are within their limits; Python raises UnicodeError for others."""
    return 0 < port < 1 << 16 and all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))


def checked_transport(transport: object, url: str, model: str) -> str:
    """The transport's name, "custom" for an object; raises `TransportError` for anything else."""
    if isinstance(transport, str) and transport in NAMES:
        return transport
    methods = (getattr(transport, name, None) for name in ("describe", "infer", "close"))
    if not isinstance(transport, str | type) and all(map(callable, methods)):
        return "custom"
    raise TransportError(
        f'transport="{transport}" is none of {", ".join(NAMES)}. Write one of them, or give an object (not its class) '
        "with describe, infer and close, see transport.py.",
        model=model,
        url=url,
    )


def _checked(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers with names in lower case, as gRPC wants them."""
    checked: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower() if isinstance(name, str) else ""
        if not _NAME.fullmatch(lower) or _RESERVED.fullmatch(lower) or lower in checked:
            raise InvalidInputError(
                f"header {name!r}: letters, digits, '-', '_' and '.' make a name, each name once, and none that HTTP "
                "or gRPC set themselves."
            )
        # The message must not show the value: it may be a secret.
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidInputError(
                f"header {name!r}: its value is not printable ASCII without spaces at its ends, so it cannot be sent. "
                "Give such a str."
            )
        checked[lower] = value
    if (size := sum(len(name) + len(value) for name, value in checked.items())) > HEADER_BYTES:
        raise InvalidInputError(f"headers: {size} bytes; servers take {HEADER_BYTES} of all together. Send fewer.")
    return tuple(checked.items())
