"""Where a server is and what it asks of its callers: the address, TLS, and the headers of every call."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from clients.errors import AddressError, InvalidInputError, TlsError
from serve.management import admin

Options = list[tuple[str, int]]
HERE = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine itself, as they stand in an address."""

HEADER_BYTES = 8 << 10
"""Names and values of all headers together; gRPC servers refuse more."""

_ADDRESS = re.compile(
    r"(?:(?P<scheme>grpcs?|https?)://|(?P<dns>dns:///))?"
    r"(?P<host>[^\s/@?#:\[\]\x00-\x20\x7f-\U0010ffff]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]):(?P<port>[0-9]{1,5})(?P<slash>/?)"
)
_NAME = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# What the protocols set themselves, and gRPC's own names.
_TAKEN = re.compile(r"grpc-.*|.*-bin|connection|content-.*|host|te|transfer-encoding|inference-header-content-length")


@dataclass(frozen=True, kw_only=True)
class Tls:
    """The files in PEM that TLS needs; the server's certificate is always verified.

    `ca` holds the certificates to trust, None the system's. `certificate` and `key` are the client's own, for a
    server that asks for one.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        """Raise `TlsError` for a certificate without its key, and for a file that cannot be used."""
        if (self.certificate is None) != (self.key is None):
            raise TlsError("Tls: a client certificate needs its key, and a key its certificate. Give both, or neither.")
        self.context()

    def context(self) -> ssl.SSLContext:
        """For HTTPS."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                # Without a password: openssl would ask for one at the terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            files = ", ".join(str(one) for one in (self.ca, self.certificate, self.key) if one)
            raise TlsError(
                f"{files}: not usable for TLS ({error}). Give readable files in PEM, the key without a password."
            ) from error
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC."""
        return grpc.ssl_channel_credentials(*(_read(file) for file in (self.trusted(), self.key, self.certificate)))

    def trusted(self) -> str | Path | None:
        """Without `ca`, the system's file of certificates; None, which is gRPC's own, where there is none."""
        return self.ca or ssl.get_default_verify_paths().cafile

    def paths(self) -> dict[str, str | None]:
        """The files by their whole paths."""
        given = {"ca": self.trusted(), "certificate": self.certificate, "key": self.key}
        return {name: str(Path(file).absolute()) if file else None for name, file in given.items()}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One server. `url` is what the user wrote, `target` the address in gRPC's form, `http` what the scheme says."""

    url: str
    target: str
    host: str
    port: int
    http: bool | None
    tls: Tls | None
    headers: tuple[tuple[str, str], ...] = field(repr=False)  # they may hold a secret

    @classmethod
    def of(
        cls, url: "str | Endpoint", *, tls: Tls | None = None, headers: Mapping[str, str] | None = None
    ) -> "Endpoint":
        """Read an address; raises `AddressError`, and `InvalidInputError` for a header that cannot be sent."""
        if not isinstance(url, str):
            return url
        found = _ADDRESS.fullmatch(url)
        wrong = found and (
            not 0 < int(found["port"]) < 1 << 16
            or (found["slash"] and not found["scheme"])
            # DNS has no other names, and Python raises UnicodeError for them.
            or not all(0 < len(label) < 64 for label in found["host"].removesuffix(".").split("."))
        )
        if not found or wrong:
            raise AddressError(
                f"{url}: not an address. Write host:port, for example localhost:8001 or [::1]:8001; grpcs://host:port "
                "or https://host:port for TLS; or dns:///host:port.",
                url=url,
            )
        scheme = found["scheme"]
        if tls and scheme in ("grpc", "http"):
            raise AddressError(f"{url}: {scheme}:// is without TLS, and tls= was given. Write {scheme}s://.", url=url)
        secure = scheme in ("grpcs", "https")
        return cls(
            url=url,
            target=f"{found['dns'] or ''}{found['host']}:{found['port']}",
            host=found["host"],
            port=int(found["port"]),
            http=scheme.startswith("http") if scheme else False if found["dns"] else None,
            tls=tls or (Tls() if secure else None),
            headers=_checked(headers or {}),
        )

    def over(self, transport: str) -> str:
        """The transport, chosen by the scheme where it is "auto"; raises `AddressError` when the two contradict."""
        if self.http is None or self.http == (transport == "http"):
            return transport
        if self.http and transport == "auto":
            return "http"
        if self.http:
            raise AddressError(
                f'{self.url}: an HTTP address, and transport="{transport}" needs the gRPC one. Give the address of '
                'the gRPC port as grpc:// or grpcs://, or transport="http".',
                url=self.url,
            )
        raise AddressError(
            f'{self.url}: a gRPC address, and transport="http" needs the HTTP one. Give the address of the HTTP port '
            "as http:// or https://, or another transport.",
            url=self.url,
        )

    def metadata(self, method: str) -> tuple[tuple[str, str], ...]:
        """The headers of one call of the protocol; those that register memory carry the secret of our own servers."""
        if "SharedMemory" not in method:
            return self.headers
        return tuple((self._secret() | dict(self.headers)).items())

    def _secret(self) -> dict[str, str]:
        return admin.headers(f"{self.host}:{self.port}")

    def channel(self, options: Options) -> grpc.Channel:
        """A channel for blocking calls."""
        options = options + self.proxy()
        if self.tls:
            return grpc.secure_channel(self.target, self.tls.credentials(), options)
        return grpc.insecure_channel(self.target, options)

    def aio_channel(self, options: Options) -> grpc.aio.Channel:
        """A channel for asyncio."""
        options = options + self.proxy()
        if self.tls:
            return grpc.aio.secure_channel(self.target, self.tls.credentials(), options)
        return grpc.aio.insecure_channel(self.target, options)

    def proxy(self) -> Options:
        """gRPC's options for this machine itself: a proxy that the environment names is not used for it."""
        return [("grpc.enable_http_proxy", 0)] if self.host in HERE or self._secret() else []

    def access(self) -> dict[str, Any]:
        """What another process of this user needs to unregister shared memory."""
        return {
            "target": self.target,
            "tls": self.tls.paths() if self.tls else None,
            "headers": self.metadata("SystemSharedMemoryUnregister"),
        }


def _checked(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers with their names in lower case, as gRPC wants them."""
    found = {}
    for name, value in headers.items():
        lower = name.lower() if isinstance(name, str) else ""
        if not _NAME.fullmatch(lower) or _TAKEN.fullmatch(lower) or lower in found:
            raise InvalidInputError(
                f"header {name!r}: letters, digits, '-', '_' and '.' make a name, each name once, and none that HTTP "
                "or gRPC set themselves."
            )
        # The value may be a secret, so the error does not repeat it.
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidInputError(
                f"header {name!r}: its value is not printable ASCII without spaces at its ends, so it cannot be sent. "
                "Give such a str."
            )
        found[lower] = value
    if (size := sum(len(name) + len(value) for name, value in found.items())) > HEADER_BYTES:
        raise InvalidInputError(f"headers: {size} bytes; servers take {HEADER_BYTES} of all together. Send fewer.")
    return tuple(found.items())


def _read(file: str | Path | None) -> bytes | None:
    return Path(file).read_bytes() if file else None
