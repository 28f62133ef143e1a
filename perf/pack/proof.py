"""A plan on a real server at its rates and above them: the record of what was planned, replayed and measured."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf.records.record import RecordError, write_json
from perf.stats.sla import judge
from triton_batching.machine import Machine

FORMAT = 1
SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Held:
    """One model at one load: `late` of `requests` that were due were answered after `sla_ms`, wrongly or never.

    `late_sends` were sent more than 1 ms after they were due: the client, not the server, was behind. A percentile that
    is None is of requests without an answer.

    `replayed_late_share` and `replayed_p99_ms` are the simulation's at the same rates. `exec_ms` and `batch_rows` are
    means over executions, by the server's counters; `planned_ms` what the plan says that so many rows take.
    """

    model: str
    rate_per_s: float
    sla_ms: float
    requests: int
    late: int
    late_sends: int
    p50_ms: float | None
    p99_ms: float | None
    executions: int
    batch_rows: float
    largest_batch: int
    exec_ms: float
    planned_ms: float
    replayed_late_share: float
    replayed_p99_ms: float

    @property
    def late_share(self) -> float:
        """Share of the requests that were late."""
        return self.late / self.requests

    @property
    def kept(self) -> bool | None:
        """Whether 99 % are in time, at 95 % confidence; None where there were too few requests to say."""
        return judge(self.requests, self.late, SHARE)


@dataclass(frozen=True, kw_only=True)
class Round:
    """All models at `scale` times their planned rates, for `seconds`."""

    scale: float
    seconds: float
    busy_share: float
    models: tuple[Held, ...]

    @property
    def kept(self) -> bool | None:
        """True: all models keep their target. False: at least one surely breaks it."""
        if any(one.kept is False for one in self.models):
            return False
        return True if all(one.kept for one in self.models) else None


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The rounds on one server, and the placement that it ran.

    Of each planned execution `own_work_ms` (fixed, for each row) are the server's own work; the model waits the rest.
    """

    plan: str
    arrivals: str
    placement: Mapping[str, Any]
    own_work_ms: tuple[float, float]
    rounds: tuple[Round, ...]
    started_at: str
    command: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]

    def write(self, folder: Path, name: str) -> Path:
        """The record, whole or not at all."""
        return write_json(name, {"format": FORMAT, "kind": "proof", **asdict(self)}, folder)

    @classmethod
    def read(cls, path: Path) -> "Proof":
        """A written one; raises `RecordError`."""
        try:
            content = json.loads(path.read_text())
            if (content.pop("format"), content.pop("kind")) != (FORMAT, "proof"):
                raise ValueError("another kind or format")
            rounds = tuple(
                Round(**one | {"models": tuple(Held(**held) for held in one["models"])}) for one in content["rounds"]
            )
            machine = Machine(**content["machine"])
            return cls(
                **content
                | {"rounds": rounds, "machine": machine, "command": tuple(content["command"])}
                | {"own_work_ms": tuple(content["own_work_ms"])}
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: not a proof of this version ({error}). Run it again.") from error
