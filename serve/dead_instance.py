"""Keeps a model instance whose process died from failing one waiting batch after the other.

Triton does not notice such a death. The instance still takes batches, waits a second for an answer to each, and fails
the batch unless the process says that it is healthy. It says so by a byte in shared memory, which Triton clears before
it waits and a living process sets every 0.3 s. While this module sets the byte for the dead process, the instance waits
with the one batch that it has, and the other instances answer the rest.

The place of the byte is from the source of the Python backend, release 24.10 (`IPCControlShm` in pb_utils.h, 16 bytes
after its reference count). Nothing is written where the bytes around it are not those of that release.
"""

import contextlib
import re
import struct
import threading
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve.launcher import Server
from serve.management import loaded

SHARED_MEMORY = Path("/dev/shm")
# The reference count; then whether the process is healthy, its parent is, an environment is used, it is decoupled.
CONTROL = struct.Struct("<I12x4B")
HEALTHY = 16
STEP_S = 0.2
# Triton clears the byte at least once in a second while the instance waits for an answer.
CLEARED_S = 1.3
# A queue that never gets empty must not keep the held batch for ever.
LONGEST_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Control:
    """What the process of an instance and Triton share: a place in a file of /dev/shm."""

    region: str
    offset: int

    def waits(self) -> bool:
        """Whether Triton waits for an answer: the byte is clear."""
        with (SHARED_MEMORY / self.region).open("rb") as file:
            file.seek(self.offset)
            count, *flags = CONTROL.unpack(file.read(CONTROL.size))
        return bool(count == 1 and flags[0] == 0 and max(flags) <= 1)

    def set_healthy(self) -> None:
        """Make Triton wait for another second."""
        with (SHARED_MEMORY / self.region).open("r+b", buffering=0) as file:
            file.seek(self.offset + HEALTHY)
            file.write(b"\1")


@contextlib.contextmanager
def held(dead: Sequence[Control], server: Server, model: str) -> Iterator[None]:
    """Hold the batch of each dead instance while requests to the model wait, for `LONGEST_S` at most.

    An instance that has no batch is left alone: Triton may be ending it, and would then wait for an answer for ever.
    That is also why an instance is held only once, and before it can be ended.
    """
    busy = _busy(dead) if _waiting(server, model) else []
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(busy, server, model, ended), daemon=True, name="dead instance")
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _busy(dead: Sequence[Control]) -> list[Control]:
    end = time.monotonic() + CLEARED_S
    busy: list[Control] = []
    while len(busy) < len(dead) and time.monotonic() < end:
        with contextlib.suppress(OSError, struct.error):
            busy += [one for one in dead if one not in busy and one.waits()]
        for one in busy:
            one.set_healthy()
        time.sleep(STEP_S / 4)
    return busy


def _keep(busy: Sequence[Control], server: Server, model: str, ended: threading.Event) -> None:
    end = time.monotonic() + LONGEST_S
    while busy and time.monotonic() < end and not ended.wait(STEP_S) and _waiting(server, model):
        for one in busy:
            with contextlib.suppress(OSError):
                one.set_healthy()


def _waiting(server: Server, model: str) -> bool:
    """Whether requests wait in the model's queue."""
    try:
        with loaded.DIRECT.open(f"http://{server.settings.host}:{server.metrics_port}/metrics", timeout=1) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.HTTPError):
        return False
    found = re.findall(
        rf'^nv_inference_pending_request_count{{model="{re.escape(model)}",.*}} (\S+)$', text, re.MULTILINE
    )
    return sum(map(float, found)) > 0
