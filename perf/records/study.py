"""The record of a study: what was asked, what was simulated, what was measured, and what was chosen; one JSON file.

`perf.tune` writes it, step by step so that an interrupted study goes on; `perf.report` draws it. Nothing in it is
derived that the report could derive.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from perf.records.candidate import Candidate
from perf.records.record import counters, kind_of
from perf.stats.sla import Sla as Sla
from serve.management.statistics import Counters
from triton_batching import whole_file
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

FORMAT = 1
KIND = "study"
# What a trial was made for.
PROFILE, HALVING, FINAL, AGAINST, NOISE = "profile", "halving", "final", "against the default", "noise"


class StudyError(Mistake):
    """A file that is not the record of a study; the text names it and says what to do."""


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
        """Write one file, whole or not at all; raises `StudyError` where the folder cannot be written to."""
        content = {"format": FORMAT, "kind": KIND, **asdict(replace(self, trials=()))}
        content["trials"] = [trial_content(one) for one in self.trials]
        for one in content["predictions"]:
            one["percentiles_ms"] = {percent: _finite(ms) for percent, ms in one["percentiles_ms"].items()}
        try:
            return whole_file.write(path, "{\n" + ",\n".join(_lines(content)) + "\n}\n")
        except whole_file.NotWrittenError as error:
            raise StudyError(str(error)) from error

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study of a file; raises `StudyError` for one of another kind or format."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = (content.pop("kind"), content.pop("format"))
            if found != (KIND, FORMAT):
                raise ValueError(f"its kind and format are {found}, not {(KIND, FORMAT)}")
            return cls(**_study(content))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StudyError(
                f"{path}: not a study of this version ({error}). Remove it and tune again: python -m perf.tune MODEL"
            ) from error


def is_study(path: Path) -> bool:
    """Whether a file says of itself that it is the record of a study, of whatever format."""
    return kind_of(path) == KIND


def _lines(content: Mapping[str, object]) -> Iterator[str]:
    """One line per field, and per element where the elements are records, so that a person can read and compare."""
    for name, value in content.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            text = "[\n  " + ",\n  ".join(json.dumps(one, allow_nan=False) for one in value) + "\n ]"
        yield f" {json.dumps(name)}: {text}"


def _finite(value: float) -> float | None:
    """JSON has no infinity: what was never answered is null."""
    return value if math.isfinite(value) else None


def _read(value: float | None) -> float:
    return math.inf if value is None else value


def _study(content: dict[str, Any]) -> dict[str, Any]:
    return content | {
        "sla": Sla(**content["sla"]),
        "machine": Machine(**content["machine"]),
        "command": tuple(content["command"]),
        "default": Candidate.read(content["default"]),
        "chosen": Candidate.read(content["chosen"]) if content["chosen"] else None,
        "space": {name: tuple(values) for name, values in content["space"].items()},
        "profiles": tuple(content["profiles"]),
        "predictions": tuple(_prediction(one) for one in content["predictions"]),
        "trials": tuple(trial_of(one) for one in content["trials"]),
        "steps": tuple(Step(**one) for one in content["steps"]),
    }


def _prediction(content: dict[str, Any]) -> Prediction:
    return Prediction(
        **content
        | {
            "candidate": Candidate.read(content["candidate"]),
            "percentiles_ms": {int(percent): _read(ms) for percent, ms in content["percentiles_ms"].items()},
            "sizes": {int(size): count for size, count in content["sizes"].items()},
            "queue_ms": {int(percent): ms for percent, ms in content.get("queue_ms", {}).items()},
            "computing_ms": {int(rows): ms for rows, ms in content.get("computing_ms", {}).items()},
        }
    )


def trial_content(trial: Trial) -> dict[str, Any]:
    """A trial as JSON has it; what was not answered is null."""
    return asdict(replace(trial, latencies_us=())) | {"latencies_us": [_finite(us) for us in trial.latencies_us]}


def trial_of(content: dict[str, Any]) -> Trial:
    """The trial that JSON has; raises `KeyError`, `TypeError` or `ValueError` for one of another version."""
    return Trial(
        **content
        | {
            "candidate": Candidate.read(content["candidate"]),
            "latencies_us": tuple(map(_read, content["latencies_us"])),
            "due_s": tuple(content["due_s"]),
            "counted": counters(content["counted"]),
            "command": tuple(content["command"]),
            "faults": tuple(content.get("faults", ())),
            "parts_us": {name: tuple(values) for name, values in content.get("parts_us", {}).items()},
        }
    )
