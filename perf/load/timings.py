"""What a process writes down of each request: its times on the machine's monotonic clock, and how it ended."""

import numpy as np
from numpy.typing import NDArray

# Outcomes.
RIGHT, WRONG, FAILED, NOT_SENT = 0, 1, 2, 3

# Nanoseconds of CLOCK_MONOTONIC. `due`: when it was to be sent, in a closed loop when it was; `called`: when it was;
# `written`: encoded and handed over; `received`: the answer is there; `done`: it is arrays again.
FIELDS = ("due", "called", "written", "received", "done")
REQUEST = np.dtype([("worker", "i4"), ("number", "i8"), *((name, "i8") for name in FIELDS), ("outcome", "u1")])
Timings = NDArray[np.void]


def empty() -> Timings:
    """No request yet."""
    return np.empty(0, dtype=REQUEST)


def request_id(worker: int, number: int) -> str:
    """What the server's traces call this request."""
    return f"{worker}.{number}"
