"""The address of a server, TLS, and the headers of every call."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import admin_secret
from .errors import AddressError, InvalidInputError, TlsError

DEFAULT_URL = "localhost:8001"
Options = list[tuple[str, int | str]]
HERE = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine in an address."""

HEADER_BYTES = 8 << 10
"""The limit for the names and values of all headers together; gRPC servers refuse more."""

_ADDRESS = re.compile(
    r"(?:(?P<scheme>grpcs?|https?)://|(?P<dns>dns:///))?"
    r"(?P<host>[^\s/@?#:\[\]\x00-\x20\x7f-\U0010ffff]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]):(?P<port>[0-9]{1,5})(?P<slash>/?)"
)
_NAME = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Headers that the protocols set themselves, and gRPC's own names.
_RESERVED = re.compile(
    r"grpc-.*|.*-bin|connection|content-.*|host|te|transfer-encoding|inference-header-content-length"
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

    def paths(self) -> dict[str, str | None]:
        """The absolute paths of `ca` (by default the system's certificates), `certificate` and `key`, or None."""
        trusted = self.ca or ssl.get_default_verify_paths().cafile
        files = {"ca": trusted, "certificate": self.certificate, "key": self.key}
        return {name: str(Path(file).absolute()) if file else None for name, file in files.items()}

    def contents(self) -> tuple[bytes | None, ...]:
        """The bytes of `ca`, `key` and `certificate`, in gRPC's order; None for a file that is not set."""
        paths = self.paths()
        return tuple(
            Path(file).read_bytes() if (file := paths[name]) else None for name in ("ca", "key", "certificate")
        )


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One server. `url` is what the user wrote, `target` the address in gRPC's form.

    `http` is True for a scheme of HTTP, False for one of gRPC, None without a scheme. `dns` is whether the host is a
    name that may stand for several servers. `name` is the name whose address `host` is, "" if the user wrote `host`.
    """

    url: str
    target: str
    host: str
    port: int
    http: bool | None
    tls: Tls | None
    headers: tuple[tuple[str, str], ...] = field(repr=False)  # they may hold a secret
    dns: bool = False
    name: str = ""

    @classmethod
    def of(
        cls, url: "str | Endpoint", *, tls: Tls | None = None, headers: Mapping[str, str] | None = None
    ) -> "Endpoint":
        """Read an address; raises `AddressError`, and `InvalidInputError` for a header that cannot be sent."""
        if not isinstance(url, str):
            return url
        match = _ADDRESS.fullmatch(url)
        if not match or not _is_possible(match):
            raise AddressError(
                f"{url}: not an address. Write host:port, for example localhost:8001 or [::1]:8001; grpcs://host:port "
                "or https://host:port for TLS; or dns:///host:port.",
                url=url,
            )
        scheme = match["scheme"]
        if tls and scheme in ("grpc", "http"):
            raise AddressError(f"{url}: {scheme}:// is without TLS, and tls= was given. Write {scheme}s://.", url=url)
        secure = scheme in ("grpcs", "https")
        return cls(
            url=url,
            target=f"{match['dns'] or ''}{match['host']}:{match['port']}",
            host=match["host"],
            port=int(match["port"]),
            http=scheme.startswith("http") if scheme else None,
            tls=tls or (Tls() if secure else None),
            headers=_checked(headers or {}),
            dns=bool(match["dns"]),
        )

    def over(self, transport: str) -> str:
        """The transport to use: "auto" follows the scheme. Raises `AddressError` if scheme and transport contradict."""
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
        """The headers of one call of the protocol; calls about shared memory carry the secret of our own servers."""
        if "SharedMemory" not in method:
            return self.headers
        return tuple((self._secret() | dict(self.headers)).items())

    def _secret(self) -> dict[str, str]:
        return admin_secret.headers(f"{self.host}:{self.port}")

    def proxy(self) -> Options:
        """gRPC's options that bypass the environment's proxy for a server on this machine."""
        return [] if self.may_use_proxy() else [("grpc.enable_http_proxy", 0)]

    def may_use_proxy(self) -> bool:
        """Whether the environment's proxy may be asked for this server: not for one on this machine."""
        return not (self.host in HERE or self._secret())

    def authority(self) -> Options:
        """gRPC's options for an address of a name, by which the server is asked for, and its certificate checked."""
        return [("grpc.default_authority", f"{self.name}:{self.port}")] if self.name else []

    def access(self) -> dict[str, Any]:
        """What the reaper, another process of this user, needs to unregister shared memory."""
        return {
            "target": self.target,
            "tls": self.tls.paths() if self.tls else None,
            "headers": self.metadata("SystemSharedMemoryUnregister"),
            "authority": f"{self.name}:{self.port}" if self.name else "",
        }


def _is_possible(match: re.Match[str]) -> bool:
    """Whether the port and the labels of the host are within their limits."""
    if not 0 < int(match["port"]) < 1 << 16 or (match["slash"] and not match["scheme"]):
        return False
    # Python raises UnicodeError for other labels.
    return all(0 < len(label) < 64 for label in match["host"].removesuffix(".").split("."))


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
