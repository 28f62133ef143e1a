"""TLS, headers and addresses of `Model` and `AsyncModel`, against real servers."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certificates
import client_models
import numpy as np
import pytest
from client_calls import TRANSPORTS, address, registered
from processes import wait_until
from relay import relay
from sleepers import PLAIN

from clients import (
    AccessError,
    AddressError,
    AsyncModel,
    InvalidInputError,
    Model,
    ServerUnreachableError,
    Tls,
    TlsError,
    admin_secret,
)
from clients.connection import BlockingConnection
from clients.endpoint import Endpoint
from clients.exchange import Exchange
from clients.lease import Lease
from clients.steps import Step
from clients.transport import Transport
from serve.launcher import Server, Settings, launch

ROW = np.arange(5)
WIDE = np.ones((1, 1), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[Server]:
    repository = client_models.build(tmp_path / "models")
    own = any("restricted" in argument for argument in arguments)
    settings = Settings(
        models=("unbatched", "wide"), repository=repository, arguments=(*PLAIN, *arguments), open_admin=own
    )
    with launch(settings) as server:
        yield server


def grpc_tls(folder: Path) -> tuple[str, ...]:
    return ("--grpc-use-ssl=true", f"--grpc-server-cert={folder}/server.pem", f"--grpc-server-key={folder}/server.key")


def both(name: str, array: Any, **arguments: Any) -> list[Any]:
    """The answer, or the error, of `Model` and of `AsyncModel`."""

    async def predict_async() -> Any:
        async with AsyncModel(name, **arguments) as model:
            return await model.predict(array)

    def predict() -> Any:
        with Model(name, **arguments) as model:
            return model.predict(array)

    ends: list[Any] = []
    for call in (predict, lambda: asyncio.run(predict_async())):
        try:
            ends.append(call())
        except Exception as error:
            ends.append(error)
    return ends


def answered(**arguments: Any) -> bool:
    return all(np.array_equal(answer, ROW[::-1]) for answer in both("unbatched", ROW, **arguments))


def check_refused(error: type[Exception], words: str, **arguments: Any) -> None:
    ends = both("unbatched", ROW, **arguments)
    assert [type(end) for end in ends] == [error] * 2, ends
    assert all(words in str(end) and "Start one" not in str(end) for end in ends), ends


@pytest.mark.server
def test_grpc_over_tls(folder: Path, tmp_path: Path) -> None:
    trusted = Tls(ca=folder / "ca.pem")
    with serving(tmp_path, *grpc_tls(folder)) as server:
        port = server.grpc_port
        for url in (f"grpcs://127.0.0.1:{port}", f"grpcs://localhost:{port}", f"127.0.0.1:{port}"):
            assert answered(url=url, tls=trusted)
        assert answered(url=f"dns:///localhost:{port}", tls=trusted)
        # Regions are registered, and unregistered by the reaper, over TLS as well.
        url = f"grpcs://127.0.0.1:{port}"
        with Model("wide", url=url, tls=trusted, transport="shared_memory") as model:
            assert (model.predict(3 * WIDE) == 3).all()
            assert len(registered(url, trusted)) == 1
            lease_of(model).close()  # all that a client that is killed does
            assert wait_until(lambda: not registered(url, trusted), seconds=10)
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=url)  # the system does not know this one
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=url, tls=Tls(ca=folder / "other.pem"))
        check_refused(ServerUnreachableError, "grpcs://", url=f"127.0.0.1:{port}")


def lease_of(model: Model) -> Lease:
    assert isinstance(model._exchange, Exchange)
    shared = model._exchange._shared
    assert shared
    assert shared._registry._lease
    return shared._registry._lease


@pytest.mark.server
def test_tls_to_a_server_without_tls_or_with_another_name(folder: Path, client_server: Server) -> None:
    trusted = Tls(ca=folder / "ca.pem")
    check_refused(TlsError, "write grpc://", url=f"grpcs://{client_server.grpc_url}", tls=trusted)
    check_refused(TlsError, "write http://", url=f"https://{client_server.http_url}", tls=trusted)
    with relay(client_server.grpc_url, tls_of(folder, "elsewhere")) as front:
        check_refused(TlsError, "IP address mismatch", url=f"grpcs://{front.url}", tls=trusted)
    assert answered(url=f"grpc://{client_server.grpc_url}")
    assert answered(url=f"http://{client_server.http_url}")
    assert answered(url=f"http://{client_server.http_url}/", transport="http")


@pytest.mark.server
def test_a_server_that_asks_for_a_client_certificate(folder: Path, tmp_path: Path) -> None:
    own = Tls(ca=folder / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key")
    mutual = ("--grpc-use-ssl-mutual=true", f"--grpc-root-cert={folder / 'ca.pem'}")
    with serving(tmp_path, *grpc_tls(folder)[1:], *mutual) as server:
        url = f"grpcs://127.0.0.1:{server.grpc_port}"
        assert answered(url=url, tls=own)
        check_refused(TlsError, "client certificate", url=url, tls=Tls(ca=folder / "ca.pem"))


@pytest.mark.server
def test_https_is_verified_as_grpc_is(folder: Path, client_server: Server) -> None:
    trusted = Tls(ca=folder / "ca.pem")
    with relay(client_server.http_url, tls_of(folder, "server")) as front:
        assert answered(url=f"https://{front.url}", tls=trusted)
        assert answered(url=front.url, tls=trusted, transport="http")
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=f"https://{front.url}")
        stranger = Tls(ca=folder / "other.pem")
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=f"https://{front.url}", tls=stranger)
        ends = both("unbatched", ROW, url=f"http://{front.url}")
        assert [type(end) for end in ends] == [ServerUnreachableError] * 2
        assert all("https://" in str(end) for end in ends)
    with relay(client_server.http_url, tls_of(folder, "elsewhere")) as front:
        check_refused(TlsError, "IP address mismatch", url=f"https://{front.url}", tls=trusted)
    with relay(client_server.http_url, tls_of(folder, "server", mutual=True)) as front:
        own = Tls(ca=folder / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key")
        assert answered(url=f"https://{front.url}", tls=own)
        ends = both("unbatched", ROW, url=f"https://{front.url}", tls=trusted)
        assert all(isinstance(end, ServerUnreachableError) for end in ends)


def tls_of(folder: Path, name: str, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    if mutual:
        context.load_verify_locations(folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.server
def test_headers_open_restricted_apis(tmp_path: Path) -> None:
    restricted = (
        "--grpc-restricted-protocol=inference,model-config,shared-memory:admin=secret",
        "--http-restricted-api=inference:triton-grpc-protocol-admin=secret",
    )
    right = {"Triton-Grpc-Protocol-Admin": "secret", "Authorization": "Bearer abc"}
    with serving(tmp_path, *restricted) as server:
        for transport in TRANSPORTS:
            url = address(server, transport)
            assert answered(url=url, transport=transport, headers=right)
            check_refused(AccessError, "triton-grpc-protocol-admin", url=url, transport=transport)
            wrong = {"triton-grpc-protocol-admin": "guess"}
            check_refused(AccessError, "headers=", url=url, transport=transport, headers=wrong)
        with Model("wide", url=server.grpc_url, headers=right) as model:
            assert (model.predict(2 * WIDE) == 2).all()
            assert len(registered(server.grpc_url, headers=right)) == 1
            lease_of(model).close()
            assert wait_until(lambda: not registered(server.grpc_url, headers=right), seconds=10)


@pytest.mark.server
def test_a_client_that_may_not_register_memory_sends_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, "--grpc-restricted-protocol=shared-memory:admin=secret") as server:
        assert [(answer == 2).all() for answer in both("wide", 2 * WIDE, url=server.grpc_url)] == [True] * 2
        # Where only those calls need a header, it goes with those calls; the caller's own wins.
        monkeypatch.setattr(admin_secret, "headers", lambda url: {"triton-grpc-protocol-admin": "secret"})
        endpoint = Endpoint.of(server.grpc_url)
        assert endpoint.metadata("ModelInfer") == ()
        connection = BlockingConnection(endpoint)
        assert not connection.call(Step("SystemSharedMemoryStatus", b""), "").regions
        connection.close()
        own = Endpoint.of(server.grpc_url, headers={"triton-grpc-protocol-admin": "other"})
        assert own.metadata("SystemSharedMemoryStatus") == (("triton-grpc-protocol-admin", "other"),)


@pytest.mark.server
def test_a_server_on_ipv6(client_server: Server) -> None:
    with relay(client_server.grpc_url, host="::1") as front:
        assert answered(url=f"grpc://{front.url}")
    with relay(client_server.http_url, host="::1") as front:
        assert answered(url=front.url, transport="http")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        ":8001",
        "localhost:65536",
        "localhost:\uff18\uff10\uff10\uff11",
        "localhost:8001/",
        "ftp://localhost:8001",
        "https://user:word@localhost:8000",
        "dns://localhost:8001",
        "localhost:8001\n",
        "a..b:8001",
        f"{'a' * 64}:8001",
    ],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(AddressError, match="not an address"):
        Model("m", url=url)
    with pytest.raises(AddressError, match="not an address"):
        AsyncModel("m", url=url)


@pytest.mark.parametrize(
    ("url", "transport", "tls"),
    [
        ("https://localhost:8000", "grpc", None),
        ("grpcs://localhost:8001", "http", None),
        ("grpc://localhost:8001", "auto", Tls()),
        ("http://localhost:8001", "auto", Tls()),
    ],
)
def test_an_address_that_contradicts_the_transport_is_refused(url: str, transport: Transport, tls: Tls | None) -> None:
    with pytest.raises(AddressError, match=r"(needs the|without TLS)"):
        AsyncModel("m", url=url, transport=transport, tls=tls)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_host_name_without_an_address_is_unreachable(transport: Transport) -> None:
    for error in both("m", ROW, url="absent.invalid:8001", transport=transport):
        assert type(error) is ServerUnreachableError
        assert (error.status, error.model, error.retryable) == ("UNAVAILABLE", "m", True)


def test_our_own_server_is_known_by_every_form_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "abc" not in repr(Endpoint.of("localhost:8001", headers={"authorization": "Bearer abc"}))
    assert Endpoint.of("192.0.2.1:8001").proxy() == []
    monkeypatch.setattr(admin_secret, "headers", lambda url: {"secret-of": url})
    assert Endpoint.of("192.0.2.1:8001").proxy() == Endpoint.of("localhost:8001").proxy() != []
    for url in ("localhost:8001", "grpcs://localhost:8001", "grpc://localhost:8001/", "dns:///localhost:8001"):
        assert Endpoint.of(url).metadata("SystemSharedMemoryRegister") == (("secret-of", "localhost:8001"),)


@pytest.mark.parametrize(
    "headers",
    [
        {"": "x"},
        {"a:b": "x"},
        {"ä": "x"},
        {"a": "x\r\nb: y"},
        {"a": b"x"},
        {"A": "x", "a": "y"},
        {"host": "x"},
        {"grpc-timeout": "1S"},
        {"key-bin": "x"},
        {"Content-Length": "3"},
        {"a": "x" * (8 << 10)},
    ],
)
def test_headers_that_cannot_be_sent_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidInputError, match="header"):
        AsyncModel("m", headers=headers)


def test_unusable_certificate_files_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    for wrong in ({"ca": tmp_path / "absent.pem"}, {"ca": tmp_path / "text.pem"}):
        with pytest.raises(TlsError, match=r"(absent|text)\.pem"):
            Tls(**wrong)
    with pytest.raises(TlsError, match="needs its key"):
        Tls(certificate=folder / "client.pem")
    with pytest.raises(TlsError, match="not usable"):
        Tls(certificate=folder / "client.pem", key=folder / "other.key")
