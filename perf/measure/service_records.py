"""Which ramps a load needs, and which of them are on record."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import digest
from export.repository import REPOSITORY, model_file, model_folder
from perf.measure.ramp import levels
from perf.measure.service_profile import ServiceTimes, load
from perf.records.candidate import Candidate
from perf.records.record import RecordError
from perf.records.traffic import Traffic
from triton_batching.machine import Machine, versions

# Those that `perf.tune` measures are there, too.
RESULTS = Path("perf/results/local/tune")
# Of a closed loop's: twice as many tell how long the batches take that these seldom form.
CLIENTS = 2


def reaching(config: ModelConfig, largest: int, traffic: Traffic) -> tuple[ModelConfig, int | None]:
    """What is to be ramped for `traffic`: `config` with the most rows that can run together, and the requests to reach.

    A closed loop never has more rows on their way than its clients send; an open one can have `largest`, and requests
    without end (None).
    """
    widest, reached = ModelConfig(), traffic.reached
    widest.CopyFrom(config)
    widest.max_batch_size = largest if reached is None else min(largest, reached)
    return widest, None if reached is None else CLIENTS * reached


def plan(
    config: ModelConfig,
    *,
    config_name: str = "default",
    instances: int,
    threads: int | None = None,
    command: Sequence[str] = (),
    repository: Path = REPOSITORY,
) -> ServiceTimes:
    """A record of `config` without measurements, to be measured or to be looked up."""
    served = model_file(model_folder(config.name, repository), config)
    largest = max(1, config.max_batch_size)
    return ServiceTimes(
        model=config.name,
        config_name=config_name,
        config_sha256=_ramped_sha256(config, largest, instances, threads),
        model_sha256=digest(served) if served.is_file() else "",
        machine=Machine.this(),
        versions=versions(),
        started_at="",
        command=tuple(command),
        instances=instances,
        threads=threads,
        max_batch_size=largest,
        sizes=(),
        alone_us=0.0,
        noise=(),
        noise_count=0,
        levels=(),
    )


def climbed(max_batch_size: int, instances: int, in_flight: int | None) -> list[int]:
    """The levels of a ramp, up to the first that has `in_flight` requests."""
    steps = levels(max_batch_size, instances)
    if in_flight is None or in_flight >= steps[-1]:
        return steps
    return [*(one for one in steps if one < in_flight), in_flight]


def known(planned: ServiceTimes, config: ModelConfig, steps: Sequence[int], folder: Path) -> ServiceTimes | None:
    """The record of `folder` that is what was `planned`, or the same with a larger maximum, and climbs as high.

    Of several the one of its own name, else the smallest.
    """
    found = [one for one in _records(planned, folder) if _same(one, planned, config)]
    high = [one for one in found if one.levels[-1].concurrency >= steps[-1]]
    return min(high, key=lambda one: (one.file_name != planned.file_name, one.max_batch_size), default=None)


def _records(planned: ServiceTimes, folder: Path) -> Iterator[ServiceTimes]:
    threads = "" if planned.threads is None else f".t{planned.threads}"
    for path in sorted(folder.glob(f"{planned.model}.*.b*.k{planned.instances}{threads}.json")):
        try:
            yield load(path)
        except RecordError:
            continue


def _same(found: ServiceTimes, planned: ServiceTimes, config: ModelConfig) -> bool:
    asked = dataclasses.replace(
        planned,
        config_name=found.config_name,
        config_sha256=_ramped_sha256(config, found.max_batch_size, planned.instances, planned.threads),
        max_batch_size=found.max_batch_size,
    )
    return found.max_batch_size >= planned.max_batch_size and found.same(asked)


def _ramped_sha256(config: ModelConfig, largest: int, instances: int, threads: int | None) -> str:
    ramped = Candidate(max_batch_size=largest, instances=instances, threads=threads).apply(config)
    return hashlib.sha256(text_format.MessageToString(ramped).encode()).hexdigest()
