"""The record of one search on a real server: one JSON file for each contender, kind of arrivals and seed."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import isotonic_regression

from perf.records import file
from triton_batching.machine import Machine

GOOD = 0.99
STEP, CLOSE, MOST = 1.08, 1.085, 9
HALVINGS, AROUND = 8, tuple(np.linspace(0.8, 1.25, 13).tolist())
# The fields that are results.
ANSWER = ("points", "command", "simulated_per_s")
# The most trials of one search, disturbed ones included.
ATTEMPTS = 20
# The share of the cores that may be busy.
LIMIT = 0.7


@dataclass(frozen=True, kw_only=True)
class RateTrial:
    """A trial at one rate (requests per second): `late` of `requests` were not answered in time, or not at all."""

    rate_per_s: float
    requests: int
    late: int

    @property
    def missed(self) -> float:
        """The share of late requests."""
        return self.late / self.requests if self.requests else 1.0

    @property
    def good(self) -> bool:
        """Whether 99 % were in time."""
        return self.missed <= 1 - GOOD + 1e-12


def following(points: Sequence[RateTrial], guess: float) -> float | None:
    """The rate to measure next; None after nine trials, or with the edge between two rates within 8 % of each other.

    From `guess` up or down in growing steps until the edge is between two rates, then halfway between them.
    """
    if not points:
        return guess
    good = max((point.rate_per_s for point in points if point.good), default=0.0)
    bad = min((point.rate_per_s for point in points if not point.good), default=math.inf)
    if len(points) >= MOST or (good and bad < math.inf and max(good, bad) / min(good, bad) <= CLOSE):
        return None
    step = float(np.power(STEP, 2 ** (len(points) - 1)))
    if bad == math.inf:
        return good * step
    if not good:
        return bad / step
    # With noise a good rate can be above a bad one. The edge is still between the two.
    return math.sqrt(good * bad)


def swept(measure: Callable[[float], RateTrial], low: float, high: float) -> float:
    """The edge for cheap trials: by halving in [`low`, `high`], then by regression over trials around the result.

    The share of late requests does not rise evenly with the rate, so halving alone finds any of several crossings.
    """
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle).good else (low, middle)
    points = [measure(low * factor) for factor in AROUND] if low else []
    return edge(points) or low


def edge(points: Sequence[RateTrial]) -> float | None:
    """The rate with 1 % late requests, on straight lines between trials; None if all are on one side.

    The true share of late requests cannot fall with the rate: neighbours whose shares do are pooled, weighted by their
    requests (isotonic regression).
    """
    if not points or all(point.good for point in points) or not any(point.good for point in points):
        return None
    ordered = sorted(points, key=lambda point: point.rate_per_s)
    rates = np.array([point.rate_per_s for point in ordered])
    weights = np.array([max(1, point.requests) for point in ordered], dtype=np.float64)
    fit = isotonic_regression([point.missed for point in ordered], weights=weights)
    pools = fit.blocks[:-1]
    pooled_rates = np.add.reduceat(rates * weights, pools) / np.add.reduceat(weights, pools)
    return float(np.interp(1 - GOOD, fit.x[pools], pooled_rates))


@dataclass(frozen=True, kw_only=True)
class MeasuredRate(RateTrial):
    """A trial, and what shows whether it is disturbed.

    Of the requests `refused` got an error and `not_sent` were above the limit of requests in flight; both are late.
    `late_sends` were sent more than 1 ms after they were due. Percentiles are of the answered requests. `cores_busy` is
    the share of all cores that was busy, `load_average` that of the machine before the trial.
    """

    refused: int
    not_sent: int
    late_sends: int
    p50_ms: float
    p99_ms: float
    cores_busy: float
    load_average: float
    started_at: str

    @property
    def disturbed(self) -> bool:
        """Whether the cores were full, so that the trial does not count."""
        return self.cores_busy >= LIMIT


@dataclass(frozen=True, kw_only=True)
class GoodputSearch:
    """The trials of one `contender` under one seed's `arrivals`, and the goodput of the simulation with the same.

    `fixed_ms` and `row_ms` are the device's times, `cap` is the maximum batch size. `requests` requests of a trial
    count, or those of `longest_s` seconds.
    """

    KIND: ClassVar[str] = "goodput"
    FORMAT: ClassVar[int] = 1
    model: str
    contender: str
    arrivals: str
    seed: int
    slo_ms: float
    fixed_ms: float
    row_ms: float
    cap: int
    requests: int
    longest_s: float
    simulated_per_s: float
    points: tuple[MeasuredRate, ...]
    machine: Machine
    versions: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def sound(self) -> tuple[MeasuredRate, ...]:
        """The trials that count: those that are not disturbed."""
        return tuple(point for point in self.points if not point.disturbed)

    def next_rate(self, first: float = 1.0) -> float | None:
        """The rate to measure next, the first at `first` x the simulated goodput; None if the search is over."""
        if len(self.points) >= ATTEMPTS:
            return None
        return following(self.sound, first * self.simulated_per_s)

    @property
    def done(self) -> bool:
        """Whether the search is over."""
        return self.next_rate() is None

    @property
    def goodput_per_s(self) -> float | None:
        """The rate with 1 % late requests; None if it is not between two trials."""
        return edge(self.sound)

    @property
    def question(self) -> dict[str, Any]:
        """The settings of the search, with the machine and the versions."""
        return {name: value for name, value in asdict(self).items() if name not in ANSWER}

    @property
    def file_name(self) -> str:
        """The name of the record, with a digest of the question."""
        digest = hashlib.sha256(repr(sorted(self.question.items())).encode()).hexdigest()[:6]
        return f"{self.model}.{self.contender}.{self.arrivals.replace(':', '')}.s{self.seed}.{digest}.json"

    def write(self, folder: Path) -> Path:
        """Write the record; raises `RecordError`."""
        return file.write(self, folder / self.file_name)


def read(folder: Path) -> Iterator[GoodputSearch]:
    """All searches of a folder, by file name; raises `RecordError` for a file that is not one."""
    return map(load, sorted(folder.glob("*.json")))


def load(path: Path) -> GoodputSearch:
    """One record; raises `RecordError`."""
    return file.read(path, GoodputSearch)
