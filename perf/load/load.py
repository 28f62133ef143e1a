"""What a fleet sends: how many processes, how many rows, and when."""

import math
from dataclasses import dataclass
from pathlib import Path

from triton_batching.terminal import Mistake

PATTERNS = ("closed", "constant", "poisson", "gamma", "ramp", "trace")
# Those that are drawn at a rate.
RATED = PATTERNS[1:5]


@dataclass(frozen=True, kw_only=True)
class Load:
    """`workers` processes that send requests of `rows` rows each.

    `pattern` closed: each process has `in_flight` requests on their way and sends another when an answer is there,
    so they are `clients` that wait. The others are open loops: requests are due at times that do not hang on the
    answers, `rate_per_s` of them a second over all processes, `constant`ly spaced, `poisson`, with `gamma` gaps of
    squared coefficient of variation `cv2` (1 is Poisson, more is bursty), Poisson at a rate that rises evenly to
    `rate_to_per_s` over the window (`ramp`), or at the times of the file `trace` (seconds, one a line). At most
    `in_flight_limit` requests are on their way at once; one that is due beyond that is not sent, and counted as such.

    What is due in the `duration_s` seconds after `warm_up_s` counts. With `requests` that many count instead,
    however long they take (closed loop only).
    """

    workers: int = 8
    rows: int = 1
    pattern: str = "closed"
    in_flight: int = 1
    rate_per_s: float = 0.0
    rate_to_per_s: float = 0.0
    cv2: float = 4.0
    trace: Path | None = None
    in_flight_limit: int = 256
    warm_up_s: float = 2.0
    duration_s: float = 10.0
    requests: int | None = None
    timeout_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (
            ("workers", 1, 512),
            ("rows", 1, 1 << 20),
            ("in_flight", 1, 4096),
            ("in_flight_limit", self.workers, 1 << 16),
        )
        for name, least, most in limits:
            if not least <= getattr(self, name) <= most:
                raise Mistake(f"--{name.replace('_', '-')} {getattr(self, name)}: must be from {least} to {most}.")
        numbers = {
            "rate": self.rate_per_s,
            "rate-to": self.rate_to_per_s,
            "cv2": self.cv2,
            "warm-up": self.warm_up_s,
            "duration": self.duration_s,
            "timeout": self.timeout_s,
        }
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise Mistake(f"--{name} {value}: must be a finite number.")
        if self.open and self.requests is not None:
            raise Mistake("--requests counts a closed loop; an open one lasts --duration seconds.")
        if self.open and self.in_flight != 1:
            raise Mistake("--in-flight is of a closed loop; what an open one may have is --in-flight-limit.")
        if (self.pattern == "ramp") != (self.rate_to_per_s > 0):
            raise Mistake("--pattern ramp and --rate-to, the requests per second at its end, go together. Name both.")
        if self.pattern in RATED and self.rate_per_s <= 0:
            raise Mistake(f"--pattern {self.pattern} needs --rate, the requests per second of all processes together.")
        if self.pattern not in RATED and self.rate_per_s:
            raise Mistake(
                f"--rate {self.rate_per_s:g}: --pattern {self.pattern} has none. Say --pattern poisson, or no rate."
            )
        if (self.pattern == "trace") != (self.trace is not None):
            raise Mistake(
                "--pattern trace and --trace FILE (one arrival time in seconds a line) go together. Name both."
            )
        if self.requests is not None and self.requests < self.clients:
            raise Mistake(f"--requests {self.requests}: less than one for each of the {self.clients} clients.")
        if self.cv2 <= 0 or self.duration_s <= 0 or self.warm_up_s < 0 or self.timeout_s <= 0:
            raise Mistake("--cv2, --duration and --timeout must be above 0, --warm-up not below.")

    @property
    def open(self) -> bool:
        """Whether requests are due at times of their own."""
        return self.pattern != "closed"

    @property
    def clients(self) -> int:
        """How many requests a closed loop has on their way."""
        return self.workers * self.in_flight

    @property
    def title(self) -> str:
        """The load in a few words."""
        if not self.open:
            each = f" x {self.in_flight} in flight" if self.in_flight > 1 else ""
            return f"{self.workers} processes{each} x {self.rows} rows, closed loop"
        end = f" to {self.rate_to_per_s:g}" if self.rate_to_per_s else ""
        rate = f" {self.rate_per_s:g}{end}/s" if self.rate_per_s else ""
        return f"{self.workers} processes x {self.rows} rows, {self.pattern}{rate}"

    def share(self, worker: int) -> int | None:
        """How many requests this process sends; None when time decides."""
        return None if self.requests is None else len(range(worker, self.requests, self.workers))
