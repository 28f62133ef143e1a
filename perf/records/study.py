"""The record of a study: what was asked, what was simulated, what was measured, and what was chosen; one JSON file.

`perf.tune` writes it, step by step so that an interrupted study goes on; `perf.report` draws it. Nothing in it is
derived that the report could derive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from clients.counters import Counters
from perf.records import file
from perf.records.candidate import Candidate
from perf.stats.sla import Sla as Sla
from triton_batching.machine import Machine

# What a trial was made for.
PROFILE, HALVING, FINAL, AGAINST, NOISE = "profile", "halving", "final", "against the default", "noise"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the simulation says of one candidate under the study's load. Latencies are the client's, of requests.

    `percentiles_ms` holds 50, 90, 95 and 99; `late` is the share of requests over the SLA; `sizes` maps rows of an
    execution to how many there were; `queue_share` is queue time over latency; `busy` the instances' mean utilisation;
    `queue_ms` the mean queue time of the requests within one percentile of each of `percentiles_ms`; `computing_ms`
    maps rows to the mean time of such an execution until it has computed (empty in records of before it was kept).
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
    queue_ms: Mapping[int, float] = field(default_factory=dict)
    computing_ms: Mapping[int, float] = field(default_factory=dict)

    def longer(self, counted: Counters) -> float:
        """Time until computed of the executions that were counted, over what was predicted of their sizes."""
        known = [rows for rows in counted.batches if rows in self.computing_ms]
        predicted_ns = sum(counted.batches[rows] * self.computing_ms[rows] * 1e6 for rows in known)
        return sum(map(counted.computing_ns, known)) / predicted_ns if predicted_ns else 1.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measurement of one candidate on a real server, in round `round` of the interleaved rounds of its `stage`.

    `stage` names why it was measured: profile, halving, final, against the default, noise (the default once more).
    Latencies in microseconds, one per request of the window from when it was due (`inf`, written as null, where it was
    not sent, not answered or answered wrong), with `due_s` since the window began. `late` counts those over the SLA,
    these among them; `late_sends` left more than 1 ms after they were due. `passed` is the binomial rule's verdict on
    the SLA: true, false, or None where the requests were too few to say; `early`: it was sure before the time was up.
    `cores_busy` is the share of all cores that anything on the machine took, `cores_ours` the part of it that server
    and clients took (None where it was not counted), `load_average` the machine's before it.
    `faults` say why it should not be believed, one sentence each.

    `stages_us` holds means over all requests of the window. `parts_us` maps the same names to one value per request
    that was looked at singly (the server's traces), all in one order; empty where none was.
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
    parts_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the search log: how long into the study, what was done, and why a candidate was kept or dropped."""

    at_s: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything about one search.

    `load` and `objective` are as on the command line. `default` is the configuration to beat, `chosen` None where
    nothing met the SLA. `space` maps each searched value to what was tried; `profiles` names the service-time records
    beside it. `limit` says what limits the chosen one now: queue, compute, transfer or cores, in a sentence.
    `model_sha256` is the digest of the model file, empty where there is none.
    """

    KIND: ClassVar[str] = "study"
    FORMAT: ClassVar[int] = 1

    model: str
    config_name: str
    load: str
    sla: Sla
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

    def write(self, path: Path) -> Path:
        """Write one file, whole or not at all, and return its path; raises `RecordError`."""
        return file.write(self, path)

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study of a file; raises `RecordError` for one of another kind, format or type."""
        return file.read(path, cls, remedy="Remove it and tune again: python -m perf.tune MODEL")


def is_study(path: Path) -> bool:
    """Whether a file says that it is the record of a study, of whatever format."""
    return file.kind_of(path) == Study.KIND
