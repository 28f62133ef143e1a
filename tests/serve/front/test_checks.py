"""What is wrong with a front door is said before anything starts."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve.front.checks import check
from serve.front.door import FrontDoor, Pool, Tenant, Tls
from serve.front.envoy import open_door
from serve.resources import free_ports
from triton_batching.terminal import Mistake

POOL = Pool(name="a", models=("m",), slowest_s=1.0, is_retried=True, most_in_flight=10)
TENANT = Tenant(name="anna", token="t" * 32, requests_per_s=1.0, burst=1)


def door(pools: tuple[Pool, ...] = (POOL,), tenants: tuple[Tenant, ...] = (), tls: Tls | None = None) -> FrontDoor:
    http_port, grpc_port, _ = free_ports("127.0.0.1", 0, 0, 0)
    return FrontDoor(host="127.0.0.1", http_port=http_port, grpc_port=grpc_port, pools=pools, tenants=tenants, tls=tls)


CASES: dict[str, tuple[Callable[[], FrontDoor], str]] = {
    "no pool": (lambda: door(()), "no pool"),
    "a model twice": (lambda: door((POOL, replace(POOL, name="b"))), "model 'm' is there 2 times"),
    "a pool twice": (lambda: door((POOL, replace(POOL, models=("n",)))), "pool 'a' is there 2 times"),
    "no model": (lambda: door((replace(POOL, models=()),)), "has no model"),
    "no time": (lambda: door((replace(POOL, slowest_s=0.0),)), "slowest_s is 0"),
    "no room": (lambda: door((replace(POOL, most_in_flight=0),)), "most_in_flight 0"),
    "a name with a slash": (lambda: door((replace(POOL, models=("m/../n",)),)), "letters, digits"),
    "the buffer": (lambda: replace(door(), retry_buffer_bytes=16 << 20), "not above the largest request"),
    "no request": (lambda: replace(door(), largest_request_bytes=0), "at least 1"),
    "no depth": (lambda: replace(door(), most_depth=0), "most_depth"),
    "no token": (lambda: door(tenants=(replace(TENANT, token=""),)), "'anna' has no token"),
    "a short token": (lambda: door(tenants=(replace(TENANT, token="secret"),)), "openssl rand"),
    "no rate": (lambda: door(tenants=(replace(TENANT, requests_per_s=0.0),)), "could not call"),
    "a tenant twice": (lambda: door(tenants=(TENANT, TENANT)), "tenant 'anna' is there 2 times"),
    "a token twice": (lambda: door(tenants=(TENANT, replace(TENANT, name="bert"))), "the same token"),
    "no certificate": (lambda: door(tls=Tls(certificate=Path("/none.pem"), key=Path("/none.key"))), "cannot be read"),
    "not a certificate": (lambda: door(tls=Tls(certificate=Path(__file__), key=Path(__file__))), "no certificate"),
    "a name as host": (lambda: replace(door(), host="example.com"), "not an IP address"),
    "everybody": (lambda: replace(door(), host="0.0.0.0"), "no tenants and no TLS"),
    "tenants without TLS": (lambda: replace(door(tenants=(TENANT,)), host="0.0.0.0"), "has no TLS"),
    "port 0": (lambda: replace(door(), grpc_port=0), "gRPC port is 0"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line(name: str) -> None:
    make, words = CASES[name]
    with pytest.raises(Mistake) as caught, open_door(make()):
        pass
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_port_in_use_or_given_twice_is_refused() -> None:
    good = door()
    with pytest.raises(Mistake, match="given twice"):
        check(replace(good, grpc_port=good.http_port))
    used = f"port {good.grpc_port} on 127.0.0.1 cannot be used"
    with socket.create_server(("127.0.0.1", good.grpc_port)), pytest.raises(Mistake, match=used):
        check(good)


def test_a_door_for_everybody_is_opened_when_it_is_safe_or_meant(certificate: Path) -> None:
    tls = Tls(certificate=certificate / "server.pem", key=certificate / "server.key")
    check(replace(door(tenants=(TENANT,), tls=tls), host="0.0.0.0"))
    check(replace(door(), host="0.0.0.0", is_open=True))
    with pytest.raises(Mistake, match="belongs to the key"):
        check(door(tls=replace(tls, key=certificate / "client.key")))
