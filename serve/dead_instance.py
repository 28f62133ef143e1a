"""Stops a model instance whose process died from failing the waiting batches one by one.

Triton does not notice such a death. The instance still takes batches, waits a second for the answer to each, and fails
the batch unless the process says that it is healthy. The process says so by a byte in shared memory: Triton clears it
before it waits, and a living process sets it every 0.3 s. While this module sets the byte in place of the dead process,
the instance waits with its current batch, and the other instances answer the other requests.

The place of the byte is from the source of the Python backend, release 24.10 (`IPCControlShm` in pb_utils.h, 16 bytes
after its reference count). Nothing is written if the bytes around it are not those of that release.
"""

import contextlib
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serve import stubs
from serve.launcher import Server
from serve.management.metrics import Metrics, MetricsError

SHARED_MEMORY = Path("/dev/shm")
# The reference count; then four flags: the process is healthy, its parent is, an environment is used, it is decoupled.
CONTROL = struct.Struct("<I12x4B")
HEALTHY = 16
STEP_S = 0.2
# Triton clears the byte at least once a second while the instance waits for an answer.
CLEARED_S = 1.3
# The longest time for which a batch is kept waiting, for a queue that never gets empty.
LONGEST_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Control:
    """The control block that the process of an instance shares with Triton: an offset in a file of /dev/shm."""

    region: str
    offset: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The control block of a stub; None if it has ended."""
        place = stubs.control_block(pid)
        return cls(region=place[0], offset=place[1]) if place else None

    def waits(self) -> bool:
        """Whether Triton waits for an answer of the process: the byte is clear."""
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
def keep_waiting(dead: Sequence[Control], server: Server, model: str) -> Iterator[None]:
    """Keep the batch of each dead instance waiting while requests are in the model's queue, for `LONGEST_S` at most.

    An instance without a batch is left alone: Triton may be ending it, and would then wait for an answer for ever. For
    the same reason this is done only once for an instance, before Triton can end it.
    """
    busy = _busy(dead) if _has_queue(server, model) else []
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(busy, server, model, ended), daemon=True, name="dead instance")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _busy(dead: Sequence[Control]) -> list[Control]:
    """Those instances that have a batch."""
    end = time.monotonic() + CLEARED_S
    busy: list[Control] = []
    while len(busy) < len(dead) and time.monotonic() < end:
        with contextlib.suppress(OSError, struct.error):
            busy += [control for control in dead if control not in busy and control.waits()]
        for control in busy:
            control.set_healthy()
        time.sleep(STEP_S / 4)
    return busy


def _keep(busy: Sequence[Control], server: Server, model: str, ended: threading.Event) -> None:
    end = time.monotonic() + LONGEST_S
    while busy and time.monotonic() < end and not ended.wait(STEP_S) and _has_queue(server, model):
        for control in busy:
            with contextlib.suppress(OSError):
                control.set_healthy()


def _has_queue(server: Server, model: str) -> bool:
    """Whether requests wait in the model's queue; False without metrics."""
    try:
        return Metrics.read(server.metrics_url, timeout_s=1.0).pending.get(model, 0.0) > 0
    except MetricsError:
        return False
