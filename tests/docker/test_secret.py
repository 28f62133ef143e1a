"""The flags of docker/serve.sh close the admin APIs of a real server, which is started for them."""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
import tritonclient.grpc as triton
import yaml
from tritonclient.utils import InferenceServerException

from serve.launcher import Settings, launch
from serve.management import admin
from tests.docker.test_files import COMPOSE, ROOT, started

HEADER = "triton-grpc-protocol-admin"
SECRET = "a:b=c, d"  # with every separator of the flag
CLOSED = {
    "/v2/repository/index": "POST",
    "/v2/repository/models/ranker/load": "POST",
    "/v2/systemsharedmemory/status": "GET",
    "/v2/cudasharedmemory/status": "GET",
    "/v2/trace/setting": "GET",
    "/v2/logging": "GET",
}


def restricting(command: Sequence[str]) -> list[str]:
    return [flag for flag in command if "-restricted-" in flag]


def ask(port: int, path: str, method: str, secret: str | None = None) -> int:
    """The status of a request."""
    headers = {HEADER: secret} if secret is not None else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, data=b"{}" if method == "POST" else None, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.server
def test_admin_apis_want_the_secret(tmp_path: Path) -> None:
    flags = restricting(started(secret=SECRET))
    assert len(flags) == 2
    settings = Settings(models=(), repository=tmp_path, open_admin=True, arguments=tuple(flags))
    with launch(settings) as server:
        http = server.http_port
        assert admin.headers(server.http_url) == {}, "the launcher has restricted nothing"
        for path, method in CLOSED.items():
            assert [ask(http, path, method, secret) for secret in (None, "", "another")] == [403] * 3, path
        assert ask(http, "/v2/repository/index", "POST", SECRET) == 200
        assert ask(http, "/v2/systemsharedmemory/status", "GET", SECRET) == 200
        assert ask(http, "/v2/models/stats", "GET") == 200
        client = triton.InferenceServerClient(server.grpc_url)
        calls = (
            client.get_model_repository_index,
            client.get_system_shared_memory_status,
            client.get_trace_settings,
            client.get_log_settings,
        )
        for call in calls:
            for headers in (None, {HEADER: "another"}):
                with pytest.raises(InferenceServerException, match="This protocol is restricted"):
                    call(headers=headers)
            call(headers={HEADER: SECRET})


def test_without_a_secret_each_start_makes_a_new_one() -> None:
    secrets = [re.findall(r"admin=([0-9a-f]{48})$", "\n".join(restricting(started())), re.MULTILINE) for _ in range(3)]
    assert all(len(flags) == 2 and flags[0] == flags[1] for flags in secrets)
    assert len({flags[0] for flags in secrets}) == 3


def test_arguments_reach_the_server_whole() -> None:
    assert started("--load-model=a b", "--x=$(id)")[-2:] == ["--load-model=a b", "--x=$(id)"]


def test_compose_gives_both_containers_the_secret_and_no_rights() -> None:
    services = yaml.safe_load(COMPOSE[0].read_text())["services"]
    assert all(
        service["environment"] == {"TRITON_ADMIN_SECRET": "${TRITON_ADMIN_SECRET:-}"} for service in services.values()
    )
    server = services["server"]
    assert (server["cap_drop"], server["read_only"], server["tmpfs"]) == (["ALL"], True, ["/tmp"])
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert (ROOT / "docker" / "serve.sh").read_text().startswith("#!/bin/sh\n")
    assert "TRITON_ADMIN_SECRET" not in os.environ
