"""One trial on servers of its own: the capacity in a closed loop, then an overload between two calm phases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import instance_count
from perf.load import deployment, run
from perf.load.deployment import Deployment
from perf.load.timings import RIGHT, Timings
from perf.load.variant import TIMES, read, waits
from perf.records.offered_load import Load
from perf.studies.experiment import now, origin
from perf.studies.overload import crowd
from perf.studies.overload.crowd import WORKERS, CrowdCounts, Schedule
from perf.studies.overload.record import NONE, OWN, QUESTION, OverloadRecord, Phase
from serve.policies import queue_limit
from triton_batching.machine import Machine
from triton_batching.terminal import Failure, Mistake

POLICY, SLO = "batch_policy", "slo_ms"
CAPACITY_S, WARM_UP_S, CALM_S = 6.0, 2.0, 10.0
# Full batches of the closed loop for each instance: one runs, one waits.
FULL = 2
# Without --give-up-ms a request ends after this time, so that the trial ends.
PATIENCE_S = 30.0
IN_A_ROW = 20
NS = 1e9


def bounded(config: ModelConfig, bound: str) -> ModelConfig:
    """A copy of `config` with this bound: `own` keeps its bounds, `none` removes all.

    Other bounds replace all, joined by `+`: `limit:MS`, `deadline:MS`, `timeout:MS` and `size:REQUESTS` (the last two
    are Triton's queue policy), and `delay:US`. Raises `Mistake`.
    """
    changed = ModelConfig()
    changed.CopyFrom(config)
    if bound == OWN:
        return changed
    changed.dynamic_batching.ClearField("default_queue_policy")
    for name in (queue_limit.KEY, POLICY, SLO):
        changed.parameters.pop(name, None)
    for part in () if bound == NONE else bound.split("+"):
        _set(changed, part, bound)
    return changed


def _set(config: ModelConfig, part: str, bound: str) -> None:
    name, _, value = part.partition(":")
    queue, parameters = config.dynamic_batching, config.parameters
    try:
        match name:
            case "limit":
                parameters[queue_limit.KEY].string_value = f"{float(value):g}"
            case "deadline":
                parameters[POLICY].string_value, parameters[SLO].string_value = "deadline", f"{float(value):g}"
            case "timeout":
                queue.default_queue_policy.default_timeout_microseconds = int(float(value) * 1e3)
            case "size":
                queue.default_queue_policy.max_queue_size = int(value)
            case "delay":
                queue.max_queue_delay_microseconds = int(value)
            case _:
                raise ValueError(name)
    except ValueError as error:
        raise Mistake(
            f"--bound {bound}: '{part}' is no bound. Write own, none, or some of limit:MS, deadline:MS, timeout:MS, "
            "size:REQUESTS and delay:US, joined by +."
        ) from error


@dataclass(frozen=True, kw_only=True)
class OverloadTrial:
    """The settings of a trial; `CALM_S` seconds at half of the capacity come before and after the overload."""

    model: str
    config_name: str | None
    bound: str
    time_scale: float
    target_ms: float
    times: float
    seconds: float
    give_up_ms: float | None
    command: tuple[str, ...]

    @property
    def config(self) -> ModelConfig:
        """The configuration that is served."""
        return self._with(self.bound)

    def question(self) -> dict[str, Any]:
        """The fields `QUESTION` of a record of this trial."""
        own = {"config": text_format.MessageToString(self.config), "machine": Machine.this()}
        return {name: own[name] if name in own else getattr(self, name) for name in QUESTION}

    @property
    def timeout_s(self) -> float:
        """How long a client waits."""
        return self.give_up_ms / 1e3 if self.give_up_ms else PATIENCE_S

    def measure(self, progress: run.Progress) -> OverloadRecord:
        """Measure; after Ctrl-C during the load the record has the results until then."""
        started_at = now()
        capacity = self._capacity(progress)
        schedule = Schedule(capacity_per_s=capacity, times=self.times, seconds=self.seconds, calm_s=CALM_S)
        with deployment.started(self._target, self.config, _starting(progress)) as server:
            load = Load(workers=WORKERS, pattern="poisson", rate_per_s=1.0)
            pool = run.prepare(self._target, load, server, progress)
            counts = crowd.send(self.model, server, pool, schedule, timeout_s=self.timeout_s, progress=progress)
        return self.record(counts, schedule, started_at)

    def record(self, counts: CrowdCounts, schedule: Schedule, started_at: str = "") -> OverloadRecord:
        """The record of what the clients measured, phase by phase."""
        ends = [min(end_s, counts.until_s) for end_s in (schedule.begin_s, schedule.end_s, schedule.over_s)]
        due = schedule.due_s()
        phases = []
        for first, last in zip((0.0, *ends), ends, strict=False):
            requests = int(np.sum((due >= first) & (due < last)))
            timings = _between(counts, first, last)
            phases.append(
                Phase.of(
                    timings, due=requests, seconds=last - first, target_ms=self.target_ms, timeout_s=self.timeout_s
                )
            )
        before, during, after = phases
        begin, end = schedule.begin_s, schedule.end_s
        return OverloadRecord(
            **(origin(self.command, started_at) | self.question()),
            capacity_per_s=round(schedule.capacity_per_s, 3),
            before=before,
            during=during,
            after=after,
            errors=counts.errors,
            memory_mb=tuple(round(bytes_ / 1e6, 1) for at, bytes_ in counts.memory if begin <= at < end),
            recovery_s=recovery_s(_between(counts, ends[1], ends[2]), counts.start_ns + int(end * NS), self.target_ms),
            cores_busy=round(counts.cores_busy, 4),
            partial=counts.partial,
        )

    def _with(self, bound: str) -> ModelConfig:
        """The model's configuration with this bound, on a device slower by `time_scale`; bounds are not scaled."""
        config = read(self.model, self.config_name)
        if self.time_scale != 1 and not waits(config):
            raise Mistake(
                f"--time-scale: '{self.model}' is not a simulated model, so its times cannot be scaled. Leave it out."
            )
        for name in TIMES if self.time_scale != 1 else ():
            parameter = config.parameters[name]
            parameter.string_value = f"{float(parameter.string_value) * self.time_scale:.10g}"
        return bounded(config, bound)

    @property
    def _target(self) -> Deployment:
        return Deployment(model=self.model, config_name=self.config_name, trace_rate=0)

    def _capacity(self, progress: run.Progress) -> float:
        """Rows per second of full batches, without a bound, since Triton's queue policies slow this load down too."""
        config = self._with(NONE)
        each = max(1, FULL * max(1, config.max_batch_size) * instance_count(config) // WORKERS)
        load = Load(workers=WORKERS, in_flight=each, warm_up_s=WARM_UP_S, duration_s=CAPACITY_S)
        with deployment.started(self._target, config, _starting(progress)) as server:
            pool = run.prepare(self._target, load, server, progress)
            result = run.run(self._target, load, server, pool, progress)
        if result.partial:
            raise KeyboardInterrupt
        if not result.outcome.answered:
            raise Failure(f"'{self.model}' answered no request of a closed loop, so its capacity is unknown.")
        return result.outcome.rows_per_s


def recovery_s(timings: Timings, end_ns: int, target_ms: float) -> float | None:
    """Seconds from `end_ns` until 20 requests in a row were answered in time; None for never."""
    in_time = (timings["outcome"] == RIGHT) & ((timings["done"] - timings["due"]) / 1e6 <= target_ms)
    if len(in_time) < IN_A_ROW:
        return None
    counts = np.convolve(in_time, np.ones(IN_A_ROW), mode="valid")
    starts = np.flatnonzero(counts == IN_A_ROW)
    return round(float((timings["due"][starts[0]] - end_ns) / NS), 3) if len(starts) else None


def _between(counts: CrowdCounts, first_s: float, last_s: float) -> Timings:
    due = (counts.timings["due"] - counts.start_ns) / NS
    return counts.timings[(due >= first_s) & (due < last_s)]


def _starting(progress: run.Progress) -> Callable[[str], None]:
    return lambda text: progress(text, 0.0)
