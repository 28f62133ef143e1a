"""The record of a study: what was asked, what was simulated, what was measured, and what was chosen; one JSON file.

`perf.tune` writes it, step by step so that an interrupted study goes on; `perf.report` draws it. Nothing in it is
derived that the report could derive.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from clients.counters import Counters
from clients.fleet.sla import Sla as Sla
from clients.machine import Machine
from perf.candidate import Candidate

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the simulation says of one candidate under the study's load. Latencies are the client's, of requests.

    `percentiles_ms` holds 50, 90, 95 and 99; `late` is the share of requests over the SLA; `sizes` maps rows of an
    execution to how many there were; `queue_share` is queue time over latency; `busy` the instances' mean utilisation.
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


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measurement of one candidate on a real server, in round `round` of the interleaved rounds of its `stage`.

    `stage` names why it was measured: profile, halving, final, against the default, noise (the default once more).
    Latencies in microseconds, one per request of the window from when it was due (`inf`, written as null, where it was
    not sent, not answered or answered wrong), with `due_s` since the window began. `late` counts those over the SLA,
    these among them; `late_sends` left more than 1 ms after they were due. `passed` is the binomial rule's verdict on
    the SLA: true, false, or None where the requests were too few to say; `early`: it was sure before the time was up.
    `cores_busy` is the share of all cores that anything on the machine took, `load_average` the machine's before it.
    `faults` say why it should not be believed, one sentence each.
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
    faults: tuple[str, ...] = ()


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
    """

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
