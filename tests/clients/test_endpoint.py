"""TLS, headers and addresses of `Model` and `AsyncModel`, against real servers."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import certificates
import client_models
import numpy as np
import pytest
from client_calls import registered
from relay import relay
from sleepers import PLAIN

from clients import (
    AccessError,
    AsyncModel,
    Model,
    ServerUnreachableError,
    Tls,
    TlsError,
)
from serve.launcher import Server, Settings, launch

ROW = np.arange(5)
WIDE = np.ones((1, 1), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


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
def test_a_server_with_tls_and_restricted_apis(folder: Path, tmp_path: Path) -> None:
    """It has a server of its own: TLS, the certificates of clients, and restrictions are flags of a start."""
    key, certificate = f"--grpc-server-key={folder}/server.key", f"--grpc-server-cert={folder}/server.pem"
    flags = (
        *(key, certificate, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={folder}/ca.pem"),
        "--grpc-restricted-protocol=inference,model-config,shared-memory:admin=secret",
        "--http-restricted-api=inference:triton-grpc-protocol-admin=secret",
    )
    own = Tls(ca=folder / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key")
    right = {"Triton-Grpc-Protocol-Admin": "secret", "Authorization": "Bearer abc"}
    repository = client_models.build(tmp_path)
    settings = Settings(
        models=("unbatched", "wide"), repository=repository, arguments=(*PLAIN, *flags), open_admin=True
    )
    with launch(settings) as server:
        port = server.grpc_port
        url = f"grpcs://127.0.0.1:{port}"
        for each in (url, f"grpcs://localhost:{port}", f"127.0.0.1:{port}", f"dns:///localhost:{port}"):
            assert answered(url=each, tls=own, headers=right)
        with Model("wide", url=url, tls=own, headers=right, transport="shared_memory") as model:
            assert (model.predict(3 * WIDE) == 3).all()
            files = {"root_certificates": "ca.pem", "private_key": "client.key", "certificate_chain": "client.pem"}
            secured = {name: str(folder / file) for name, file in files.items()}
            assert len(registered(f"127.0.0.1:{port}", {name.lower(): right[name] for name in right}, **secured)) == 1
        check_refused(TlsError, "client certificate", url=url, tls=Tls(ca=folder / "ca.pem"))
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=url)  # the system does not know this one
        check_refused(TlsError, "CERTIFICATE_VERIFY_FAILED", url=url, tls=Tls(ca=folder / "other.pem"))
        check_refused(ServerUnreachableError, "grpcs://", url=f"127.0.0.1:{port}")
        wrong = {"triton-grpc-protocol-admin": "guess"}
        for place in ({"url": url, "tls": own}, {"url": server.http_url, "transport": "http"}):
            check_refused(AccessError, "triton-grpc-protocol-admin", **place)
            check_refused(AccessError, "headers=", headers=wrong, **place)
        assert answered(url=server.http_url, transport="http", headers=right)


@pytest.mark.server
def test_tls_to_a_server_without_tls_or_with_another_name(folder: Path, client_server: Server) -> None:
    trusted = Tls(ca=folder / "ca.pem")
    check_refused(TlsError, "write grpc://", url=f"grpcs://{client_server.grpc_url}", tls=trusted)
    check_refused(TlsError, "write http://", url=f"https://{client_server.http_url}", tls=trusted)
    with relay(client_server.grpc_url, tls_of(folder, "elsewhere")) as front:
        check_refused(TlsError, "Hostname Verification Check failed", url=f"grpcs://{front.url}", tls=trusted)
    assert answered(url=f"grpc://{client_server.grpc_url}")
    assert answered(url=f"http://{client_server.http_url}")
    assert answered(url=f"http://{client_server.http_url}/", transport="http")


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
def test_a_server_on_ipv6(client_server: Server) -> None:
    with relay(client_server.grpc_url, host="::1") as front:
        assert answered(url=f"grpc://{front.url}")
    with relay(client_server.http_url, host="::1") as front:
        assert answered(url=front.url, transport="http")
