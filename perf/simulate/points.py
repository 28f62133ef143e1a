"""A measured point beside what is predicted for it: the record of one configuration under one load."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.counters import Counters
from clients.fleet.arrivals import arrivals
from clients.machine import Machine
from perf import record
from perf.candidate import Candidate
from perf.record import RecordError
from perf.service_curve import Size, smoothed
from perf.service_profile import Profile, Way
from perf.simulate.predict import predict
from perf.study import Prediction, Sla
from perf.traffic import Traffic

FORMAT = 1
CLOSED, OPEN = "perf_analyzer", "clients.fleet"
# Predictions of a closed loop: enough requests that no draw of the noise shows.
REQUESTS = 24_000
# How far a prediction may be off.
LIMITS = {"throughput": 0.05, "p50": 0.10, "p95": 0.20}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration, measured under one load by `client`, from `seconds` of it and so many `requests`.

    Latencies are of requests, in milliseconds. The open loop's arrivals are those that `seed` draws for the warm-up and
    the window. `ramps` names the records of the service times that were measured in the same minutes.
    """

    model: str
    config_name: str
    candidate: Candidate
    load: str
    client: str
    ramps: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]
    started_at: str
    command: tuple[str, ...]
    seconds: float
    warm_up_s: float
    seed: int
    requests: int
    throughput_rows_per_s: float
    mean_ms: float
    percentiles_ms: Mapping[int, float]
    counted: Counters
    cores_busy: float | None = None

    @property
    def file_name(self) -> str:
        """A name that a person can read."""
        return file_name(self.model, self.candidate, self.load)

    @property
    def outside_us(self) -> float:
        """Mean microseconds of a request outside the server's counters."""
        counted = self.counted
        inside = counted.queue_ns + counted.compute_input_ns + counted.compute_infer_ns + counted.compute_output_ns
        return self.mean_ms * 1e3 - counted.per_request_us(inside)

    def fits(self, profile: Profile) -> bool:
        """Whether this was measured after these ramps, on their machine and versions.

        So it was on their model and configuration files as well, whose digests a ramp has: one whose files have changed
        since is measured again, and is then younger than this.
        """
        ramps = profile.ramps
        return tuple(ramp.file_name for ramp in ramps) == self.ramps and all(
            (ramp.model, ramp.config_name, ramp.machine) == (self.model, self.config_name, self.machine)
            and dict(ramp.versions) == dict(self.versions)
            and ramp.started_at < self.started_at
            for ramp in ramps
        )

    def own(self, profile: Profile) -> Profile:
        """The profile with the service times that were counted at this very point, to tell what a miss comes from."""
        counted = self.counted
        ramp = profile.nearest(self.candidate.instances, self.candidate.threads)
        sizes = tuple(
            Size(rows=rows, executions=count, mean_us=counted.execution_ns(rows) / count / 1e3, error_us=0.0)
            for rows, count in counted.batches.items()
        )
        table = smoothed(sizes, ramp.max_batch_size)
        # Whatever ran together here is in these times already.
        return Profile(ramps=(dataclasses.replace(ramp, sizes=sizes, alone_us=table[1]),))

    def drift(self, profile: Profile) -> float:
        """Time that the executions took over what the ramp says of their sizes, minus 1: a machine of other speed."""
        table = profile.nearest(self.candidate.instances, self.candidate.threads).table_us
        expected = sum(count * table[rows] for rows, count in self.counted.batches.items())
        return self.counted.busy_ns / 1e3 / expected - 1

    def predicted(
        self, config: ModelConfig, profile: Profile, *, way: Way | None = None, stretch: float = 1.0
    ) -> Prediction:
        """What the simulation says, from the service times alone, and for an open loop of just these arrivals.

        `way` and `stretch` are as for `predict`: what this point's client is known to be otherwise than the ramp's.
        """
        traffic, sla = Traffic.parse(self.load), Sla(latency_ms=float("inf"))
        if not traffic.open:
            return predict(self.candidate, config, traffic, profile, sla, requests=REQUESTS, way=way, stretch=stretch)
        load = traffic.fleet(warm_up_s=self.warm_up_s, duration_s=self.seconds, seed=self.seed)
        due = arrivals(load)
        due = due[due < self.warm_up_s + self.seconds]
        return predict(
            self.candidate,
            config,
            dataclasses.replace(traffic, due_s=tuple(due.tolist())),
            profile,
            sla,
            requests=len(due),
            warm_up=float((due < self.warm_up_s).mean()),
            way=way,
            stretch=stretch,
        )

    def errors(self, prediction: Prediction) -> dict[str, float]:
        """Predicted over measured, minus 1, by what `LIMITS` names."""
        return {
            "throughput": prediction.throughput_rows_per_s / self.throughput_rows_per_s - 1,
            "p50": prediction.percentiles_ms[50] / self.percentiles_ms[50] - 1,
            "p95": prediction.percentiles_ms[95] / self.percentiles_ms[95] - 1,
        }


def file_name(model: str, candidate: Candidate, load: str) -> str:
    """The name of this point's record."""
    threads = "" if candidate.threads is None else f".t{candidate.threads}"
    values = f"b{candidate.max_batch_size}.d{candidate.delay_us}.k{candidate.instances}{threads}"
    return f"{model}.{values}.{load.replace(':', '_')}.json"


def holds(errors: Mapping[str, float]) -> bool:
    """Whether all errors are within their limits."""
    return all(abs(error) <= LIMITS[name] for name, error in errors.items())


def write(point: Point, folder: Path, name: str | None = None) -> Path:
    """Write one record, whole or not at all, under the point's own name or another."""
    content = {"format": FORMAT, "kind": "predicted_point", **dataclasses.asdict(point)}
    # What was never answered has no latency that JSON could hold.
    finite = {one: value if math.isfinite(value) else None for one, value in point.percentiles_ms.items()}
    return record.write_json(name or point.file_name, content | {"percentiles_ms": finite}, folder)


def load(path: Path) -> Point:
    """One record; raises `RecordError`."""
    try:
        content = json.loads(path.read_text())
        if (content.pop("format"), content.pop("kind")) != (FORMAT, "predicted_point"):
            raise ValueError("another kind or format")
        return Point(
            **content
            | {
                "candidate": Candidate.read(content["candidate"]),
                "machine": Machine(**content["machine"]),
                "ramps": tuple(content["ramps"]),
                "command": tuple(content["command"]),
                "percentiles_ms": {
                    int(one): math.inf if value is None else value for one, value in content["percentiles_ms"].items()
                },
                "counted": record.counters(content["counted"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path}: not a measured point of this version ({error}). Remove it and measure again."
        ) from error


def measured(folder: Path, models: Sequence[str]) -> list[Point]:
    """The points of these models in a folder, by file name."""
    return [load(path) for model in models for path in sorted(folder.glob(f"{model}.b*.json"))]
