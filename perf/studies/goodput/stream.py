"""The arrivals of a trial: the same for a seed at every rate, only faster or slower."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.load.arrivals import arrivals
from perf.records.traffic import Traffic

# The kinds of arrivals, and their burstiness (cv2).
KINDS = {"poisson": 1.0, "gamma": 4.0}
# Requests of the warm-up, after which the queue and the policies are in their normal state.
WARM_UP = 200


@dataclass(frozen=True, kw_only=True)
class ArrivalStream:
    """About `requests` requests of one row that count, drawn with `seed`; `cv2` is the burstiness of gamma gaps.

    At a rate they take `requests` / rate seconds after a warm-up of `WARM_UP` / rate, so two rates have the same
    arrivals on another time scale. They take at most `most_s` seconds; then fewer requests count.
    """

    kind: str
    cv2: float
    seed: int
    requests: int
    most_s: float = float("inf")

    @classmethod
    def of(cls, kind: str, *, seed: int, requests: int, most_s: float = float("inf")) -> "ArrivalStream":
        """The arrivals of a kind; bursty ones need more requests for the same precision."""
        cv2 = KINDS[kind]
        return cls(kind=kind, cv2=cv2, seed=seed, requests=round(requests * cv2**0.5), most_s=most_s)

    def __str__(self) -> str:
        return self.kind if self.kind == "poisson" else f"{self.kind}:{self.cv2:g}"

    def at(self, rate_per_s: float) -> Traffic:
        """The arrivals at a rate, for the load generator."""
        return Traffic(pattern=self.kind, rate_per_s=rate_per_s, cv2=self.cv2)

    def seconds(self, rate_per_s: float) -> float:
        """Seconds of the requests that count."""
        return min(self.requests / rate_per_s, self.most_s)

    def warm_up_s(self, rate_per_s: float) -> float:
        """Seconds of the warm-up."""
        return min(WARM_UP / rate_per_s, self.most_s / 4)

    def times(self, rate_per_s: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """When the load generator sends them, in seconds, and which of them count; both (requests,)."""
        before, seconds = self.warm_up_s(rate_per_s), self.seconds(rate_per_s)
        load = self.at(rate_per_s).load(warm_up_s=before, duration_s=seconds, seed=self.seed)
        times = arrivals(load)
        return times, (times >= before) & (times < before + seconds)
