"""The throughput of a run from the requests that were due in its window.

These do not include the requests that were due before the window and answered in it. So the time that counts begins
with the end of the first batch: requests from before the window have been answered by then, as far as requests are
answered in the order of their due times. It ends with the end of the last batch, and so holds whole batches only: for
batches of b rows that take T each, the rate is b / T, wherever the window begins and ends. From the first answer to the
end of the window it would count most of the first batch and only a part of the time of the last one.

What happens between the last batch and the end of the window is not known, so a pause there is not counted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Answers that are closer than this share of the mean time for an answer are of one batch. The gaps within a batch of b
# rows would have to be half as long as T / b to be missed. If single answers are taken for one batch, the time begins
# or ends with another answer, which makes no difference on average.
SAME_BATCH = 0.5


def rate_per_s(due_s: Sequence[float], latencies_us: Sequence[float], seconds: float) -> float | None:
    """Right answers a second, from the end of the first batch to that of the last; None if that is too few to tell."""
    found = per_piece(due_s, latencies_us, seconds, pieces=1)
    return found[0] if found else None


def per_piece(due_s: Sequence[float], latencies_us: Sequence[float], seconds: float, *, pieces: int) -> list[float]:
    """Right answers a second in equal pieces of the time from the end of the first batch to that of the last.

    The arguments are (requests,), in order of due time, with an infinite latency for a request without a right answer.
    Empty if fewer than two batches were answered in the window.
    """
    if len(due_s) != len(latencies_us):
        return []
    done = _done_s(due_s, latencies_us)
    ends = _batch_ends_s(done, seconds)
    if len(ends) < 2:
        return []
    edges = np.linspace(ends[0], ends[-1], pieces + 1)
    # A piece is open at its begin, so that the first batch, which only starts the time, is in none.
    place = np.searchsorted(edges, done, side="left") - 1
    counts = np.bincount(place[(place >= 0) & (place < pieces)], minlength=pieces)
    return [float(count) for count in counts * pieces / (ends[-1] - ends[0])]


def _batch_ends_s(done: NDArray[np.float64], seconds: float) -> NDArray[np.float64]:
    """The times at which batches ended in the window, from that of the request that was due first; ascending."""
    if not len(done):
        return done
    answers = np.sort(done[done >= done[0]])
    together = SAME_BATCH * max(answers[-1], seconds) / len(answers)
    # A batch that the end of the window cuts ends later.
    ends = answers[np.diff(answers, append=np.inf) > together]
    return np.asarray(ends[ends <= seconds])


def _done_s(due_s: Sequence[float], latencies_us: Sequence[float]) -> NDArray[np.float64]:
    """The times of the right answers in seconds since the start of the window, in order of due time."""
    latencies = np.asarray(latencies_us, dtype=np.float64)
    return np.asarray((np.asarray(due_s, dtype=np.float64) + latencies / 1e6)[np.isfinite(latencies)])
