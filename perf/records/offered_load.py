"""The load that the load generator offers: how many processes, how many rows a request, and when requests are due."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from perf.records.size_mix import digest
from triton_batching.terminal import Mistake

PATTERNS = ("closed", "constant", "poisson", "gamma", "ramp", "trace")
# The patterns that need a rate.
RATED = PATTERNS[1:5]
# The least and the largest rate (requests per second) and cv2 of an open loop.
RATES, CV2S = (1e-3, 1e6), (1e-3, 1e4)


def file_sha256(path: Path | None) -> str:
    """The digest of a file that holds a load, empty without a file; raises `Mistake` for one that cannot be read.

    A path is no identity: the same load is one whose file has the same content.
    """
    try:
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise Mistake(
            f"{path}: not a trace of arrivals ({error.strerror}). Write one number of seconds a line."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests of `rows` rows each, from `workers` processes.

    In a closed loop each process keeps `in_flight` requests in flight and sends the next when an answer arrives. The
    other patterns are open loops, in which requests are due at times that do not depend on the answers. `rate_per_s`
    is the rate of all processes together:

    constant  evenly spaced
    poisson   exponential gaps
    gamma     gamma gaps with the squared coefficient of variation `cv2`: 1 is Poisson, more is bursty
    ramp      Poisson, with a rate that rises evenly to `rate_to_per_s` over the window
    trace     at the times in the file `trace`, seconds, one a line; `trace_sha256` is its digest, empty in old records

    At most `in_flight_limit` requests of an open loop are in flight; a request due beyond that is not sent, and counted
    as not sent. The window is the `duration_s` seconds after `warm_up_s`. With `requests` (closed loop only) the window
    is that many requests instead. `sizes` are those of the requests in place of each -1 in dims, from `--mix` with the
    text `mix`; without any, `export.graph.samples` chooses. Raises `Mistake` for values that do not go together.
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
    trace_sha256: str = ""
    mix: str = ""
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = (
            ("workers", 1, 512),
            ("rows", 1, 1 << 20),
            ("in_flight", 1, 4096),
            ("in_flight_limit", self.workers, 1 << 16),
            ("seed", 0, (1 << 64) - 1),
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
        for name, value, (low, high) in (("rate", self.rate_per_s, RATES), ("rate-to", self.rate_to_per_s, RATES)):
            if value and not low <= value <= high:
                raise Mistake(f"--{name} {value:g}: must be from {low:g} to {high:.0f} requests per second.")
        if not CV2S[0] <= self.cv2 <= CV2S[1]:
            raise Mistake(f"--cv2 {self.cv2:g}: must be from {CV2S[0]:g} to {CV2S[1]:.0f}.")
        if self.open and self.requests is not None:
            raise Mistake("--requests belongs to a closed loop. An open loop lasts --duration seconds.")
        if self.open and self.in_flight != 1:
            raise Mistake("--in-flight belongs to a closed loop. Limit an open loop with --in-flight-limit.")
        if (self.pattern == "ramp") != (self.rate_to_per_s > 0):
            raise Mistake("--pattern ramp and --rate-to, the requests per second at its end, go together. Name both.")
        if self.pattern in RATED and self.rate_per_s <= 0:
            raise Mistake(f"--pattern {self.pattern} needs --rate, the requests per second of all processes together.")
        if self.pattern not in RATED and self.rate_per_s:
            raise Mistake(
                f"--rate {self.rate_per_s:g}: --pattern {self.pattern} has no rate. "
                "Use --pattern poisson, or leave out --rate."
            )
        if (self.pattern == "trace") != (self.trace is not None):
            raise Mistake(
                "--pattern trace and --trace FILE (one arrival time in seconds a line) go together. Name both."
            )
        if self.requests is not None and self.requests < self.clients:
            raise Mistake(f"--requests {self.requests}: less than one for each of the {self.clients} clients.")
        if self.duration_s <= 0 or self.warm_up_s < 0 or self.timeout_s <= 0:
            raise Mistake("--duration and --timeout must be above 0, and --warm-up must not be below 0.")

    @property
    def open(self) -> bool:
        """Whether requests are due at times that do not depend on the answers."""
        return self.pattern != "closed"

    @property
    def clients(self) -> int:
        """Requests in flight in a closed loop, over all processes."""
        return self.workers * self.in_flight

    @property
    def title(self) -> str:
        """The load in words; a trace, and sizes, are named by the start of their digest."""
        return self._arrivals + (f", mix {self.mix} {digest(self.sizes)}" if self.sizes else "")

    @property
    def _arrivals(self) -> str:
        if not self.open:
            each = f" x {self.in_flight} in flight" if self.in_flight > 1 else ""
            return f"{self.workers} processes{each} x {self.rows} rows, closed loop"
        end = f" to {self.rate_to_per_s:g}" if self.rate_to_per_s else ""
        rate = f" {self.rate_per_s:g}{end}/s" if self.rate_per_s else ""
        content = f" {self.trace_sha256[:8]}" if self.trace_sha256 else ""
        return f"{self.workers} processes x {self.rows} rows, {self.pattern}{rate}{content}"

    def share(self, worker: int) -> int | None:
        """The number of requests of one process; None if the time ends the load."""
        return None if self.requests is None else len(range(worker, self.requests, self.workers))
