"""Processes that are forked while a client is open make clients of their own, and end normally."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clients import TransportName
from serve.launcher import Server

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
CLOSED = (
    "'picky' was closed, or was made by the process that this one was forked from. Make one in each process, and call "
    "it before it is closed."
)

GRPC = "was forked from one that had used gRPC"


@pytest.mark.parametrize(
    ("transport", "kind", "way"),
    [
        ("grpc", "Model", "os"),
        ("grpc", "AsyncModel", "multiprocessing"),
        ("shared_memory", "AsyncModel", "os"),
        ("http", "Model", "multiprocessing"),
    ],
)
def test_a_forked_child_gets_an_error_that_says_what_to_do(
    client_server: Server, transport: TransportName, kind: str, way: str
) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "helpers" / "forking_process.py"),
            *(client_server.grpc_url, client_server.http_url, transport, kind, way),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    output = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, output.pop("parent"), output.pop("inherited")) == (0, "2.0, child: 7", CLOSED)
    assert output.pop("close") == "None"
    for name, said in output.items():
        # gRPC works in the child if the parent has not used it; HTTP always does.
        is_refused = "HTTP" not in name and transport != "http"
        assert (GRPC in said) if is_refused else (said == "3.0"), (name, said)
