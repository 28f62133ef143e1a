"""The record of what a call costs, its ratios and its gates."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.stats.interval import Interval
from perf.stats.rounds import paired
from perf.studies.experiment import Origin

RAW, HTTP, BLOCKING = "raw", "http", "Model http"
THEIRS = ("tritonclient http", "tritonclient grpc")
KINDS = (RAW, HTTP, "grpc", *THEIRS, BLOCKING, "Model grpc")
"""The clients: `raw` is the floor, then ours for asyncio, tritonclient's for asyncio, and ours that block."""

MOST_OVER_RAW, LEAST_UNDER_THEIRS, MOST_BLOCKING_US = 1.5, 3.5, 60.0


@dataclass(frozen=True, kw_only=True)
class CostRecord(Origin):
    """Microseconds of CPU time of a call by client, one value for each round; `callers` calls were in flight.

    The clients that block have one call in flight.
    """

    KIND: ClassVar[str] = "cost"
    FORMAT: ClassVar[int] = 1
    callers: int
    request_bytes: int
    cost_us: Mapping[str, tuple[float, ...]]

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / "cost.json")


def over(cost_us: Mapping[str, Sequence[float]], kind: str, other: str) -> Interval:
    """The cost of one client over that of another, from the ratio of each round."""
    return paired(cost_us[kind], cost_us[other])


def missed(cost_us: Mapping[str, Sequence[float]]) -> list[str]:
    """The gates that the medians miss, in words."""
    words = []
    if (ratio := over(cost_us, HTTP, RAW).value) > MOST_OVER_RAW:
        words.append(f"AsyncModel over HTTP costs {ratio:.2f} of the floor, more than {MOST_OVER_RAW}")
    theirs = {kind: over(cost_us, kind, HTTP).value for kind in THEIRS if kind in cost_us}
    words += [
        f"{kind} costs {ratio:.2f} of AsyncModel over HTTP, less than {LEAST_UNDER_THEIRS}"
        for kind, ratio in theirs.items()
        if ratio < LEAST_UNDER_THEIRS
    ]
    if (middle := statistics.median(cost_us[BLOCKING])) > MOST_BLOCKING_US:
        words.append(f"Model over HTTP costs {middle:.0f} us, more than {MOST_BLOCKING_US:.0f}")
    return words
