"""The constants of the simulation that a profile does not measure: the value, its range, and where it comes from.

They were read from traces of few models on one machine. An interval of a
prediction includes what it would be with other values of the range.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Microseconds, shares and shapes that are the same for all models.

    Attributes:
        hops: shape of the gamma distribution of a lone request's way. As traced on two cores, nine of ten first answers
            of a batch came back within 0.7 to 1.5 times their mean; the times between further answers were exponential.
        quiet: if nothing runs while requests come back, because a delay holds the next batch, they are this much closer
            together, as traced on two models: 105 us instead of 140 to 170.
        late_us: how late a sleeping thread wakes up, for records without their own (as measured on three models; Linux
            allows timers 50 us of it).
        cooling_us: after this pause two thirds of the caches' contents are lost, fitted to two models that do.
        apart: factor on the time between two answers of a batch. A profile knows the sum of it and of what delays all
            of them, and takes two thirds (`perf.measure.service_way.APART`); traced on two models: 0.63 to 0.97.
        batcher_first: how often the batcher's thread, which the end of an execution wakes up, adds what waits to a
            payload before the instance takes it. Only with a delay, as without one a payload grows at each request.
            Fitted to the queue times of two models: 0.2 to 0.7.
        pace: answers leave at a pace from 1 - pace to 1 + pace times the mean, depending on the server's other threads,
            as traced.
    """

    hops: float = 12.0
    quiet: float = 2 / 3
    late_us: float = 120.0
    cooling_us: float = 17_000.0
    apart: float = 1.0
    batcher_first: float = 0.35
    pace: float = 0.9

    def drawn(self, rng: np.random.Generator) -> "Constants":
        """These constants with random values of their ranges."""
        return replace(self, **{name: float(rng.uniform(*limits)) for name, limits in RANGES.items()})


STANDARD = Constants()
# What was seen: the spread of the traces, three models after pauses, and its single readings for the
# cooling, whose shares scatter.
RANGES: Mapping[str, tuple[float, float]] = {
    "hops": (6.0, 24.0),
    "quiet": (0.5, 1.0),
    "late_us": (60.0, 230.0),
    "cooling_us": (5_000.0, 40_000.0),
    "apart": (0.95, 1.45),
    "batcher_first": (0.15, 0.7),
    "pace": (0.5, 0.9),
}
assert set(RANGES) == {field.name for field in fields(Constants)}
