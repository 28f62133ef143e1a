"""What a client process records of each request: its times on the machine's monotonic clock, and how it ended."""

import time
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clients import Hooks, Request, Response

# Values of `outcome`.
RIGHT, WRONG, FAILED, NOT_SENT = 0, 1, 2, 3

# Nanoseconds of CLOCK_MONOTONIC. `due`: when the request was to be sent (in a closed loop, when it was); `called`: when
# the client was called; `written`: encoded and handed to the connection; `received`: answer received; `done`: decoded.
FIELDS = ("due", "called", "written", "received", "done")
REQUEST = np.dtype([("worker", "i4"), ("number", "i8"), *((name, "i8") for name in FIELDS), ("outcome", "u1")])
Timings = NDArray[np.void]


def empty() -> Timings:
    """Timings of no requests."""
    return np.empty(0, dtype=REQUEST)


def request_id(worker: int, number: int) -> str:
    """The id of a request in the server's traces."""
    return f"{worker}.{number}"


@dataclass(kw_only=True)
class Moments:
    """Nanoseconds of the monotonic clock of the call that this task or thread makes; 0 is not yet."""

    written: int = 0
    received: int = 0


MOMENTS: ContextVar[Moments | None] = ContextVar("moments", default=None)


def _sent(_: Request) -> None:
    if moments := MOMENTS.get():
        moments.written = time.monotonic_ns()


def _answered(_: Response) -> None:
    if moments := MOMENTS.get():
        moments.received = time.monotonic_ns()


HOOKS: Hooks = {"request": [_sent], "response": [_answered]}
"""For `Model(hooks=...)` and `AsyncModel(hooks=...)`; they note the times in `MOMENTS`."""
