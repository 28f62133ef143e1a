"""The addresses of several replicas in one `url`: a list, or a name that stands for several."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .endpoint import Endpoint, Tls
from .errors import AddressError, ServerUnreachableError


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The servers in a `url`, as the user wrote them; `resolved` if it is a name that stands for all its addresses."""

    url: str
    endpoints: tuple[Endpoint, ...]

    @classmethod
    def of(cls, url: str, *, tls: Tls | None = None, headers: Mapping[str, str] | None = None) -> "Addresses":
        """Read "a:8001,b:8001", "grpcs://a:8001,b:8001", "dns:///name:8001", or one address.

        Raises `AddressError`, and `InvalidInputError` for a header that cannot be sent.
        """
        if not isinstance(url, str) or "," not in url:
            return cls(url=url, endpoints=(Endpoint.of(url, tls=tls, headers=headers),))
        entries = [entry.strip() for entry in url.split(",")]
        if not all(entries):
            raise AddressError(
                f"{url}: an address is empty. Write one between two commas, and none at the end.", url=url
            )
        scheme = _scheme(url, entries)
        whole = [entry if "://" in entry else scheme + entry for entry in entries]
        endpoints = tuple(Endpoint.of(entry, tls=tls, headers=headers) for entry in whole)
        seen: dict[tuple[str, int], str] = {}
        for entry, endpoint in zip(entries, endpoints, strict=True):
            if (first := seen.setdefault((endpoint.host.lower(), endpoint.port), entry)) is not entry:
                raise AddressError(f"{url}: {first} is there twice. Write each address once.", url=url)
        return cls(url=url, endpoints=endpoints)

    @property
    def is_name(self) -> bool:
        """Whether it is one name, dns:///name:port, that stands for all its addresses."""
        return self.endpoints[0].dns

    def now(self) -> tuple[Endpoint, ...]:
        """One endpoint for each server. Blocks while a name is resolved; raises `ServerUnreachableError`."""
        if not self.is_name:
            return self.endpoints
        (named,) = self.endpoints
        try:
            found = socket.getaddrinfo(named.host.strip("[]"), named.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ServerUnreachableError(
                f"{self.url}: the name has no address ({error}). Look at the spelling, and at this machine's DNS.",
                status="UNAVAILABLE",
                text=str(error),
                url=self.url,
            ) from error
        hosts = dict.fromkeys(str(address[0]) for *_, address in found)
        return tuple(_at(named, f"[{host}]" if ":" in host else host) for host in hosts)


def _scheme(url: str, entries: list[str]) -> str:
    """The scheme of the first entry with its "://", which goes for those without one; "" for none."""
    schemes = ["".join(entry.partition("://")[:2]) if "://" in entry else "" for entry in entries]
    if any(scheme.startswith("dns:") for scheme in schemes):
        raise AddressError(f"{url}: dns:/// stands for all addresses of one name. Write it alone.", url=url)
    if others := [scheme for scheme in schemes[1:] if scheme not in ("", schemes[0])]:
        first = schemes[0] or "no scheme"
        raise AddressError(f"{url}: {first} and {others[0]} in one list. Write the same for all.", url=url)
    return schemes[0]


def _at(named: Endpoint, host: str) -> Endpoint:
    """The endpoint of one address of a name; certificates are checked against the name."""
    address = f"{host}:{named.port}"
    return replace(named, url=address, target=address, host=host, name=named.host)
