"""Processes that are forked while a client is open make clients of their own, and end normally."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve.launcher import Server

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
CLOSED = (
    "'picky' was closed, or was made by the process that this one was forked from. Make one in each process, and call "
    "it before it is closed."
)
GRPC = "was forked from one that had used gRPC"
# The child calls and closes the client of its parent, opens clients of its own, and ends; then its parent calls again.
PROGRAM = """
import asyncio, os, sys
import numpy as np
from clients import AsyncModel, ClientError, Model

URL, HTTP_URL, TRANSPORT, KIND = sys.argv[1:]
ONE, OWN = np.ones((1, 1), np.float32), {"url": HTTP_URL if TRANSPORT == "http" else URL, "transport": TRANSPORT}
runner = asyncio.Runner()

def done(value):
    return value if KIND == "Model" else runner.run(value)

def attempt(name, act):
    try:
        print(f"{name}: {act()}", flush=True)
    except ClientError as error:
        print(f"{name}: {error}", flush=True)

def blocking(options):
    with Model("picky", **options) as model:
        return model.predict(9 * ONE).item()

async def asynchronous(options):
    async with AsyncModel("picky", **options) as model:
        return (await model.predict(9 * ONE)).item()

model = Model("picky", **OWN) if KIND == "Model" else AsyncModel("picky", **OWN)
done(model.__enter__() if KIND == "Model" else model.__aenter__())
done(model.predict(4 * ONE))
if not (pid := os.fork()):
    # The loop is its parent's, too: a child that closed it would end the parent's waits.
    runner = asyncio.Runner()
    attempt("inherited", lambda: done(model.predict(4 * ONE)))
    attempt("close", lambda: done(model.close()))
    for name, options in {"own": OWN, "own over HTTP": {"url": HTTP_URL, "transport": "http"}}.items():
        attempt(name, lambda: blocking(options))
        attempt(f"{name}, async", lambda: asyncio.run(asynchronous(options)))
    sys.stdout.flush()
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(f"parent: {done(model.predict(4 * ONE)).item()}, child: {code}", flush=True)
done(model.close())
"""


@pytest.mark.parametrize("kind", ["Model", "AsyncModel"])
@pytest.mark.parametrize("transport", ["grpc", "shared_memory", "http"])
def test_a_forked_child_gets_an_error_that_says_what_to_do(client_server: Server, transport: str, kind: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, client_server.grpc_url, client_server.http_url, transport, kind],
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
