"""The arrivals of a trial: half of the capacity, then the overload, then half of the capacity again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.load.arrivals import drawn

HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Poisson arrivals of one-row requests: `seconds` at `times` x `capacity_per_s`.

    Before and after come `calm_s` seconds at half of the capacity.
    """

    capacity_per_s: float
    times: float
    seconds: float
    calm_s: float
    seed: int = 0

    @property
    def begin_s(self) -> float:
        """When the overload begins."""
        return self.calm_s

    @property
    def end_s(self) -> float:
        """When the overload ends."""
        return self.calm_s + self.seconds

    @property
    def over_s(self) -> float:
        """When the last request is due."""
        return self.end_s + self.calm_s

    def due_s(self) -> NDArray[np.float64]:
        """All due times in seconds, rising."""
        rng = np.random.default_rng(self.seed)
        half, full = HALF * self.capacity_per_s, self.times * self.capacity_per_s
        parts = [
            drawn("poisson", half, self.calm_s, 1.0, rng),
            self.begin_s + drawn("poisson", full, self.seconds, 1.0, rng),
            self.end_s + drawn("poisson", half, self.calm_s, 1.0, rng),
        ]
        return np.concatenate(parts)
