"""The record of a study: its predictions, its trials, and the configuration that it chose.

`perf.tune` writes it after each step, so that an interrupted study can continue, and `perf.report` draws it. It holds
nothing that the report can derive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from perf.records import file
from perf.records.candidate import Candidate
from perf.records.resource_use import Limits, ResourceUse
from perf.stats.latency_target import LatencyTarget as LatencyTarget
from perf.stats.percentile import percentile_ms
from serve.management.statistics import Counters
from triton_batching.machine import Machine

# The variant of the model that a study writes: configs/tuned.pbtxt.
TUNED = "tuned"
# The stages of a study: why a trial was made. The trials of `NOISE` repeat the default (A/A noise).
PROFILE, HALVING, FINAL, AGAINST, NOISE = "profile", "halving", "final", "against the default", "noise"
# What readers are told of them.
PHASES = {HALVING: "search"} | dict.fromkeys((FINAL, AGAINST, NOISE), "comparison")


def phase(stage: str, round: int) -> str:
    """Why a trial was made, in words: `comparison, round 2`."""
    return f"{PHASES.get(stage, stage)}, round {round}"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the simulation predicts for one candidate under the study's load. Latencies are those of the clients.

    `percentiles_ms` holds 50, 90, 95 and 99. `late` is the share of requests over the latency target. `sizes` maps the
    batch size to the number of executions. `queue_share` is queue time over latency. `busy` is the mean utilisation of
    the instances. `computing_ms` maps the batch size to the mean time of an execution until it has computed.
    """

    candidate: Candidate
    requests: int
    throughput_rows_per_s: float
    percentiles_ms: Mapping[int, float]
    late: float
    rows_per_execution: float
    queue_share: float
    busy: float
    sizes: Mapping[int, int]
    computing_ms: Mapping[int, float] = field(default_factory=dict)

    def longer(self, counted: Counters) -> float:
        """Time until computed of the counted executions over the prediction for their batch sizes."""
        known = [rows for rows in counted.batches if rows in self.computing_ms]
        predicted_ns = sum(counted.batches[rows] * self.computing_ms[rows] * 1e6 for rows in known)
        return sum(map(counted.computing_ns, known)) / predicted_ns if predicted_ns else 1.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measurement of one candidate on a real server, in round `round` of its `stage`.

    `load` is as on the command line; `load_sha256` is the digest of the file that it names, empty if it names none.
    `planned_s` and `warm_up_s` are what was asked for: a window of so many seconds, after so many of the same load.
    `seconds` is the window's real length.

    `latencies_us` has one latency per request of the window, from its due time, and infinity (null in the file) for a
    request that was not sent, failed, or got a wrong answer. `due_s` are the due times since the start of the window.
    `late` counts the requests over the latency target, those included. `late_sends` were sent more than 1 ms after they
    were due. `passed` is the verdict of the binomial rule; None if the requests were too few. `early`: the trial ended
    as soon as the verdict was certain. `cores_busy` is the share of all cores in use, `cores_ours` the part of server
    and clients (None if it was not counted), `load_average` that of the machine before the trial. `faults` are reasons
    not to trust the trial, in words.

    `used` is what the server used. In a study its GPU memory is None if servers of other candidates ran beside it.

    `stages_us` maps the stages of a request to means over the window.
    """

    candidate: Candidate
    stage: str
    round: int
    started_at: str
    load: str
    seconds: float
    throughput_rows_per_s: float
    offered_per_s: float | None
    requests: int
    late: int
    late_sends: int
    not_sent: int
    failed: int
    passed: bool | None
    latencies_us: tuple[float, ...]
    due_s: tuple[float, ...]
    stages_us: Mapping[str, float]
    counted: Counters
    cores_busy: float
    load_average: float
    command: tuple[str, ...]
    wrong: int = 0
    early: bool = False
    cores_ours: float | None = None
    faults: tuple[str, ...] = ()
    planned_s: float | None = None
    warm_up_s: float | None = None
    load_sha256: str = ""
    used: ResourceUse = field(default_factory=ResourceUse)

    @cached_property
    def latencies(self) -> NDArray[np.float64]:
        """`latencies_us` as an array: (requests,)."""
        return np.asarray(self.latencies_us, dtype=np.float64)

    @cached_property
    def p99_ms(self) -> float:
        """The 99th percentile of the latency; infinite if more than 1 % of the requests have no right answer."""
        return percentile_ms(self.latencies, 99)

    @property
    def thinned(self) -> bool:
        """Whether `latencies_us` are percentiles of the latencies, as in the studies in git, and not one a request."""
        return len(self.latencies_us) != self.requests


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of the search log: seconds since the start of the study, and what was done and why."""

    at_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """One tuning of one model.

    `load` and `objective` are as on the command line. `default` is the configuration to improve on. `chosen` is None if
    nothing met the latency target. `space` maps each searched field to the values tried. `profiles` are the names of
    the service-time records beside the study. `limit` says what limits the chosen configuration, in a sentence.
    `model_sha256` is the digest of the model file, empty if there is none. None that used more than `limits` is
    chosen.
    """

    KIND: ClassVar[str] = "study"
    FORMAT: ClassVar[int] = 1

    model: str
    config_name: str
    load: str
    sla: LatencyTarget
    objective: str
    machine: Machine
    versions: Mapping[str, str]
    started_at: str
    command: tuple[str, ...]
    default: Candidate
    chosen: Candidate | None
    space: Mapping[str, tuple[int, ...]]
    profiles: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    trials: tuple[Trial, ...]
    steps: tuple[Step, ...]
    limit: str
    before_pbtxt: str
    after_pbtxt: str
    model_sha256: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def target(self) -> LatencyTarget:
        """The latency target, which is called `sla` in files."""
        return self.sla

    def write(self, path: Path) -> Path:
        """Write the record and return its path; raises `RecordError`."""
        return file.write(self, path)

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study of a file; raises `RecordError`."""
        return file.read(path, cls, remedy="Remove it and tune again: triton-batching tune MODEL")


def is_study(path: Path) -> bool:
    """Whether a file says that it is a study, in whatever format."""
    return file.kind_of(path) == Study.KIND
