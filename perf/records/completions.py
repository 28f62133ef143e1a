"""The throughput of a run from the requests that were due in its window.

These do not include the requests that were due before the window and answered in it. So the time that counts begins
when the first request of the window is answered: those before it have been answered by then, as far as requests are
answered in the order of their due times.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rate_per_s(due_s: Sequence[float], latencies_us: Sequence[float], seconds: float) -> float | None:
    """Right answers a second, from the first answer to the end of the window; None if that is too few to tell."""
    found = per_piece(due_s, latencies_us, seconds, pieces=1)
    return found[0] if found else None


def per_piece(due_s: Sequence[float], latencies_us: Sequence[float], seconds: float, *, pieces: int) -> list[float]:
    """Right answers a second in equal pieces of the time from the first answer to the end of the window.

    The arguments are (requests,), in order of due time, with an infinite latency for a request without a right answer.
    Empty if no request was answered in the window after the first.
    """
    if len(due_s) != len(latencies_us):
        return []
    done = _done_s(due_s, latencies_us)
    if not len(done) or not np.any((done > done[0]) & (done <= seconds)):
        return []
    edges = np.linspace(done[0], seconds, pieces + 1)
    # A piece is open at its begin, so that the first answer, which only starts the time, is in none.
    place = np.searchsorted(edges, done, side="left") - 1
    counts = np.bincount(place[(place >= 0) & (place < pieces)], minlength=pieces)
    return [float(count) for count in counts * pieces / (seconds - done[0])]


def _done_s(due_s: Sequence[float], latencies_us: Sequence[float]) -> NDArray[np.float64]:
    """The times of the right answers in seconds since the start of the window, in order of due time."""
    latencies = np.asarray(latencies_us, dtype=np.float64)
    return np.asarray((np.asarray(due_s, dtype=np.float64) + latencies / 1e6)[np.isfinite(latencies)])
