"""What is wrong with a front door is said before anything starts."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import certificates
import pytest

from serve.front.checks import check
from serve.front.door import FrontDoor, Pool, Tenant, Tls
from serve.resources import free_ports
from triton_batching.terminal import Mistake

POOL = Pool(name="a", models=("m",), slowest_s=1.0, is_retried=True, most_in_flight=10)
TENANT = Tenant(name="anna", token="t" * 32, requests_per_s=1.0, burst=1)


def door(*pools: Pool, tenants: tuple[Tenant, ...] = (), tls: Tls | None = None) -> FrontDoor:
    http_port, grpc_port, _ = free_ports("127.0.0.1", 0, 0, 0)
    return FrontDoor(host="127.0.0.1", http_port=http_port, grpc_port=grpc_port, pools=pools, tenants=tenants, tls=tls)


def refusal(front: FrontDoor) -> str:
    with pytest.raises(Mistake) as caught:
        check(front)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mistakes_are_one_line_each(tmp_path: Path, golden: Callable[..., None]) -> None:
    good, no_certificate = door(POOL), tmp_path / "none.pem"
    (tmp_path / "text.pem").write_text("not a certificate")
    tls = [Tls(certificate=path, key=path) for path in (no_certificate, tmp_path / "text.pem")]
    fronts = [
        door(),
        door(POOL, replace(POOL, name="b")),
        door(POOL, replace(POOL, models=("n",))),
        *(door(replace(POOL, **wrong)) for wrong in ({"models": ()}, {"slowest_s": 0.0}, {"most_in_flight": 0})),
        door(replace(POOL, models=("m/../n",))),
        replace(good, retry_buffer_bytes=16 << 20),
        replace(good, largest_request_bytes=0),
        replace(good, most_depth=0),
        door(POOL, tenants=(replace(TENANT, token=""),)),
        door(POOL, tenants=(replace(TENANT, token="secret"),)),
        door(POOL, tenants=(replace(TENANT, requests_per_s=0.0),)),
        door(POOL, tenants=(TENANT, TENANT)),
        door(POOL, tenants=(TENANT, replace(TENANT, name="bert"))),
        *(door(POOL, tls=wrong) for wrong in tls),
        replace(good, host="example.com"),
        replace(good, host="0.0.0.0"),
        replace(door(POOL, tenants=(TENANT,)), host="0.0.0.0"),
        replace(good, grpc_port=0),
    ]
    said = [refusal(front) for front in fronts]
    said.append(refusal(replace(good, grpc_port=good.http_port)))
    with socket.create_server(("127.0.0.1", good.grpc_port)):
        said.append(refusal(good))
    golden("front_mistakes", "\n".join(said), masks={r"port \d{4,5}\b": "port PORT", r"_ssl\.c:\d+": "_ssl.c:N"})


@pytest.mark.slow
def test_a_door_for_everybody_is_opened_when_it_is_safe_or_meant(tmp_path: Path) -> None:
    certificate = certificates.make(tmp_path)
    tls = Tls(certificate=certificate / "server.pem", key=certificate / "server.key")
    check(replace(door(POOL, tenants=(TENANT,), tls=tls), host="0.0.0.0"))
    check(replace(door(POOL), host="0.0.0.0", is_open=True))
    assert "belongs to the key" in refusal(door(POOL, tls=replace(tls, key=certificate / "client.key")))
