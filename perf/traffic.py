"""The load that a configuration is to carry, as words, for the simulation and for the load generator.

`closed:16` is 16 clients that each wait for an answer before they send again; `poisson:300`, `constant:300` and
`gamma:300:4` are open loops of 300 requests per second (the last with gaps of squared coefficient of variation 4);
`trace:FILE` is an open loop at the times of a file, seconds, one a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clients.fleet import load as fleet
from clients.fleet.arrivals import drawn, read_trace
from export.terminal import Mistake
from serve.batcher.load import Arrivals, ClosedLoop, Load
from serve.batcher.request import Request, Time

NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One load: `clients` for a closed loop, `rate_per_s` requests per second and `cv2` for an open one.

    Every request has `rows` rows.
    """

    pattern: str
    clients: int = 0
    rate_per_s: float = 0.0
    cv2: float = 1.0
    trace: Path | None = None
    rows: int = 1

    @classmethod
    def parse(cls, text: str, *, rows: int = 1) -> "Traffic":
        """The load that `closed:16`, `poisson:300`, `constant:300`, `gamma:300:4` or `trace:FILE` names."""
        pattern, _, rest = text.partition(":")
        values = rest.split(":")
        try:
            if pattern == "trace" and rest:
                return cls(pattern=pattern, trace=Path(rest), rows=rows)
            if pattern == "closed" and len(values) == 1 and int(rest) > 0:
                return cls(pattern=pattern, clients=int(rest), rows=rows)
            if pattern in ("poisson", "constant") and len(values) == 1 and float(rest) > 0:
                return cls(pattern=pattern, rate_per_s=float(rest), rows=rows)
            if pattern == "gamma" and len(values) == 2 and min(map(float, values)) > 0:
                return cls(pattern=pattern, rate_per_s=float(values[0]), cv2=float(values[1]), rows=rows)
        except ValueError:
            pass
        raise Mistake(
            f"--load {text}: not a load. Write closed:16 (clients), poisson:300 or constant:300 (requests per second), "
            "gamma:300:4 (and the burstiness cv2), or trace:FILE (arrival times in seconds, one a line)."
        )

    def __str__(self) -> str:
        if self.pattern == "closed":
            return f"closed:{self.clients}"
        if self.pattern == "trace":
            return f"trace:{self.trace}"
        burst = f":{self.cv2:g}" if self.pattern == "gamma" else ""
        return f"{self.pattern}:{self.rate_per_s:g}{burst}"

    @property
    def open(self) -> bool:
        """Whether requests are due at times of their own."""
        return self.pattern != "closed"

    def simulated(self, requests: int, *, turnaround: Time, seed: int = 0) -> Load:
        """So many requests for `serve.batcher`; a closed loop's clients send again `turnaround` ns after an answer."""
        if not self.open:
            return ClosedLoop(self.clients, requests, self.request, turnaround=turnaround)
        return Arrivals(list(self.arrivals(requests, seed)))

    def fleet(self, *, warm_up_s: float, duration_s: float, workers: int = 1, seed: int = 0) -> fleet.Load:
        """The same for `clients.fleet`; a closed loop's clients are spread over the `workers` processes."""
        raise NotImplementedError

    def arrivals(self, requests: int, seed: int) -> Iterator[Request]:
        """So many requests of an open loop, in order of time."""
        if self.trace is not None:
            times = read_trace(self.trace)[:requests]
        else:
            end = 1.2 * requests / self.rate_per_s + 10 * self.cv2 / self.rate_per_s
            times = drawn(self.pattern, self.rate_per_s, end, self.cv2, np.random.default_rng(seed))[:requests]
        for number, at in enumerate((times * NS).astype(np.int64).tolist(), 1):
            yield self.request(number, 0, at)

    def request(self, number: int, client: int, at: Time) -> Request:
        """One request of this load, due at `at` nanoseconds."""
        return Request(number=number, client=client, at=at, rows=self.rows)
