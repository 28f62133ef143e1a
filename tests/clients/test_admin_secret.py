"""Clients find the secret of the admin APIs that the launcher wrote, and only where they may use it."""

import os
from pathlib import Path

import pytest

from clients import _admin_secret as admin_secret
from serve.management import admin

SECRET = admin.make_secret()
URLS = (
    "localhost:8001",
    "127.0.0.1:8001",
    "[::1]:8001",
    "192.0.2.1:8001",
    "localhost:8002",
    "localhost:x",
    "localhost",
    "[::1",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One folder for secrets, for both halves."""
    folders = [tmp_path / "absent" / "secrets", tmp_path / "secrets"]
    monkeypatch.setattr(admin, "_folders", lambda: iter(folders))
    monkeypatch.setattr(admin_secret, "_folders", lambda: iter(folders))
    return folders[1]


def test_both_halves_look_in_the_same_folders() -> None:
    assert list(admin_secret._folders()) == list(admin._folders())
    assert admin_secret.HEADER == admin.HEADER


@pytest.mark.parametrize(
    ("host", "urls"),
    [
        ("127.0.0.1", {"localhost:8001", "127.0.0.1:8001"}),
        ("localhost", {"localhost:8001", "127.0.0.1:8001"}),
        ("0.0.0.0", {"localhost:8001", "127.0.0.1:8001"}),
        ("::1", {"localhost:8001", "[::1]:8001"}),
        ("::", {"localhost:8001", "127.0.0.1:8001", "[::1]:8001"}),
        ("192.0.2.1", {"192.0.2.1:8001"}),
    ],
)
def test_the_addresses_of_a_server_have_its_secret(folder: Path, host: str, urls: set[str]) -> None:
    admin.publish(SECRET, host, [8001])
    assert {url for url in URLS if admin_secret.headers(url) == {admin.HEADER: SECRET}} == urls
    assert {url: admin_secret.headers(url) for url in URLS} == {url: admin.headers(url) for url in URLS}


@pytest.mark.parametrize("harm", ["open to others", "a link", "a pipe", "not JSON"])
def test_a_file_that_is_not_private_is_not_read(folder: Path, harm: str) -> None:
    (path,) = admin.publish(SECRET, "127.0.0.1", [8001])
    if harm == "open to others":
        path.chmod(0o640)
    elif harm == "a link":
        path.rename(folder / "other")
        path.symlink_to(folder / "other")
    elif harm == "a pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.write_text("{")
    assert admin_secret.headers("127.0.0.1:8001") == {}


def test_localhost_does_not_get_the_secret_if_another_user_has_the_port(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.publish(SECRET, "127.0.0.1", [8001])
    monkeypatch.setattr(admin_secret, "_has_stranger", lambda port: port == 8001)
    assert admin_secret.headers("localhost:8001") == {}
    assert admin_secret.headers("127.0.0.1:8001") == {admin.HEADER: SECRET}
