"""Traffic: a load in words, as users give it with --load, for the simulation and for the load generator.

closed:16     16 clients, each of which waits for an answer before it sends again
poisson:300   an open loop of 300 requests per second; so is constant:300
gamma:300:4   the same with gaps of squared coefficient of variation 4
ramp:100:400  a Poisson stream whose rate rises from 100 to 400 requests per second during the measurement
trace:FILE    an open loop at the times in a file, seconds, one a line

On record ` mix 8:64` at the end means requests of different size (`size_mix.py`), which users give with --mix.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perf.records.offered_load import CV2S, RATES, Load, file_sha256
from perf.records.size_mix import FILE, SizeMix
from triton_batching.options import MOST_CLIENTS
from triton_batching.terminal import Mistake

# Requests in flight in an open loop; a load that needs more exceeds the capacity of the server.
IN_FLIGHT_LIMIT = 1024
# What stands between a load and its mix on record. The path of a trace may hold the word too, but ends in no mix.
MIX = " mix "
WITH_MIX = re.compile(rf"(.*?){MIX}({FILE}.*|[-+\d*:,_ ]+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A load without processes and duration: `clients` of a closed loop, `rate_per_s` and `cv2` of an open loop.

    Every request has `rows` rows, and a size of the `mix`, if there is one. A simulation gives them the `shapes` in
    turn, if there are any: the shape of each input without the batch axis. If `times_s` has any times, the requests of
    an open loop are due then, in seconds.
    """

    pattern: str
    clients: int = 0
    rate_per_s: float = 0.0
    rate_to_per_s: float = 0.0
    cv2: float = 1.0
    trace: Path | None = None
    times_s: tuple[float, ...] = ()
    rows: int = 1
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    mix: SizeMix | None = None

    @classmethod
    def parse(cls, text: str, *, rows: int = 1, mix: SizeMix | None = None) -> "Traffic":
        """The traffic of a user's text such as `closed:16`; raises `Mistake`."""
        return replace(cls._parsed(text, rows), mix=mix)

    @classmethod
    def of_record(cls, text: str, *, rows: int = 1) -> "Traffic":
        """The traffic of a text on record, such as `closed:16` or `closed:16 mix 8:64`; raises `Mistake`."""
        both = WITH_MIX.fullmatch(text)
        return cls.parse(text, rows=rows) if both is None else cls.parse(both[1], rows=rows, mix=SizeMix(text=both[2]))

    @classmethod
    def _parsed(cls, text: str, rows: int) -> "Traffic":
        pattern, _, rest = text.partition(":")
        values = rest.split(":")
        try:
            if pattern == "trace" and rest:
                return cls(pattern=pattern, trace=Path(rest), rows=rows)
            if pattern == "closed" and len(values) == 1 and 1 <= int(rest) <= MOST_CLIENTS:
                return cls(pattern=pattern, clients=int(rest), rows=rows)
            numbers = [float(value) for value in values]
            limits = (RATES, CV2S if pattern == "gamma" else RATES)
            if not all(least <= number <= most for number, (least, most) in zip(numbers, limits, strict=False)):
                raise ValueError
            if pattern in ("poisson", "constant") and len(numbers) == 1:
                return cls(pattern=pattern, rate_per_s=numbers[0], rows=rows)
            if pattern == "gamma" and len(numbers) == 2:
                return cls(pattern=pattern, rate_per_s=numbers[0], cv2=numbers[1], rows=rows)
            if pattern == "ramp" and len(numbers) == 2:
                return cls(pattern=pattern, rate_per_s=numbers[0], rate_to_per_s=numbers[1], rows=rows)
        except ValueError:
            pass
        raise Mistake(
            f"--load {text}: not a load. Write closed:16 (clients, at most {MOST_CLIENTS}), poisson:300 or "
            "constant:300 (requests per second), gamma:300:4 (rate and burstiness cv2), ramp:100:400 (first and last "
            f"rate), or trace:FILE (arrival times in seconds, one a line). A rate is {RATES[0]:g} to {RATES[1]:.0f}, "
            f"cv2 {CV2S[0]:g} to {CV2S[1]:.0f}."
        )

    def __str__(self) -> str:
        return self.arrivals if self.mix is None else f"{self.arrivals}{MIX}{self.mix}"

    @property
    def arrivals(self) -> str:
        """The load without its mix, as in --load."""
        if self.pattern == "closed":
            return f"closed:{self.clients}"
        if self.pattern == "trace":
            return f"trace:{self.trace}"
        more = {"gamma": f":{self.cv2:g}", "ramp": f":{self.rate_to_per_s:g}"}.get(self.pattern, "")
        return f"{self.pattern}:{self.rate_per_s:g}{more}"

    @property
    def open(self) -> bool:
        """Whether requests are due at times that do not depend on the answers."""
        return self.pattern != "closed"

    @property
    def reached(self) -> int | None:
        """The most rows in flight: those of the clients of a closed loop; None for an open loop, which has no limit."""
        return None if self.open else self.clients * self.rows

    @property
    def sha256(self) -> str:
        """The digest of the files that it names, of a trace as it is now; empty for other loads. Raises `Mistake`."""
        digests = [each for each in (file_sha256(self.trace), self.mix.sha256 if self.mix else "") if each]
        return hashlib.sha256("".join(digests).encode()).hexdigest() if digests[1:] else "".join(digests)

    def load(self, *, warm_up_s: float, duration_s: float, workers: int = 1, seed: int = 0) -> Load:
        """The load for `perf.load`; the clients of a closed loop are spread evenly over at most `workers` processes."""
        if not self.open:
            workers = max(count for count in range(1, workers + 1) if self.clients % count == 0)
        return Load(
            workers=workers,
            rows=self.rows,
            pattern=self.pattern,
            in_flight=1 if self.open else self.clients // workers,
            rate_per_s=self.rate_per_s,
            rate_to_per_s=self.rate_to_per_s,
            cv2=self.cv2,
            trace=self.trace,
            trace_sha256=file_sha256(self.trace),
            in_flight_limit=IN_FLIGHT_LIMIT,
            warm_up_s=warm_up_s,
            duration_s=duration_s,
            seed=seed,
            mix=str(self.mix or ""),
            sizes=self.mix.sent if self.mix else (),
        )
