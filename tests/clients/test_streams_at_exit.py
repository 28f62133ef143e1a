"""Programs that end while they have a stream: they end at once or soon, and cancel nothing on an old server."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from h2_server import HEAD, H2Server, Peer, message

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
BEGIN = """
import asyncio, atexit, sys
import numpy as np
from clients import AsyncModel, Model
X = np.ones((1, 1), np.float32)
model = {kind}("m", url=sys.argv[1], transport="grpc")
"""
PROGRAMS = {
    "a global": "model.__enter__(); stream = model.stream(X); print(next(stream).item())",
    "at exit": "model.__enter__(); stream = model.stream(X); print(next(stream).item()); atexit.register(stream.close)",
    "a global of a loop": """
async def begin():
    global stream
    await model.__aenter__()
    stream = model.stream(X)
    print((await anext(stream)).item())
asyncio.run(begin())
""",
    "a loop that was closed": """
async def begin():
    global stream
    await model.__aenter__()
    stream = model.stream(X)
    print((await anext(stream)).item())
loop = asyncio.new_event_loop()
loop.run_until_complete(begin())
loop.close()
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("version", ["2.51.0", "2.59.0"])
def test_a_program_ends_with_a_stream(h2: H2Server, program: str, version: str) -> None:
    """The server sends the second answer half a second after the first, and no other."""
    h2.version = version

    def answer(peer: Peer, stream: int, _: bytes) -> None:
        with peer.lock:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, message(1))
            peer.flush()
        threading.Timer(0.5, lambda: end(peer, stream)).start()

    def end(peer: Peer, stream: int) -> None:
        with peer.lock:
            if stream not in peer.resets:
                peer.h2.send_data(stream, message(2, final=True))
                peer.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                peer.flush()

    h2.on_infer = answer
    text = BEGIN.format(kind="AsyncModel" if "loop" in program else "Model") + PROGRAMS[program]
    done = subprocess.run(
        [sys.executable, "-c", text, h2.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
    resets = [stream for peer in h2.peers for stream in peer.resets]
    assert version == "2.59.0" or not resets
