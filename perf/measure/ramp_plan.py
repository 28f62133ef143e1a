"""Which ramps a load needs, and which of them have a record."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import model_digest
from export.repository import REPOSITORY, batch_policy, model_file, model_folder
from perf.measure import RESULTS as RESULTS
from perf.measure.ramp import levels
from perf.measure.service_curve import Curve
from perf.measure.service_profile import ServiceTimes, load
from perf.records.candidate import Candidate
from perf.records.measurement import RecordError
from perf.records.size_mix import SizeMix
from perf.records.traffic import Traffic
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake

# A ramp goes up to this many times the clients of a closed loop, to measure batches that they rarely form.
CLIENTS = 2
# A gap between two counted sizes is looked into if the times on both sides differ by more than this share.
JUMP = 0.1
# A time in the middle of a gap is on the straight line between both sides if it is off by less than this share of
# their difference: half of it would be a step.
STRAIGHT = 0.25
# Sizes that are measured by themselves, about a second each.
MOST_PROBES = 8


def reaching(config: ModelConfig, largest: int, traffic: Traffic) -> tuple[ModelConfig, int | None]:
    """The ramp for `traffic`: `config` with the largest batch that can form, and the most requests in flight.

    A closed loop never has more rows in flight than its clients send. An open loop can fill `largest`, and has no limit
    (None).
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
    mix: SizeMix | None = None,
    command: Sequence[str] = (),
    repository: Path = REPOSITORY,
) -> ServiceTimes:
    """A record of `config` without measurements, to measure or to look up.

    Raises `Mistake` for a batch policy: Triton counts handing a request to it as an execution.
    """
    if (policy := batch_policy(config)) != "all":
        raise Mistake(
            f'model "{config.name}" has batch_policy "{policy}": Triton counts handing requests to it as '
            "executions, so service times cannot be measured. Name one without batch_policy (--config-name)."
        )
    served = model_file(model_folder(config.name, repository), config)
    largest = max(1, config.max_batch_size)
    return ServiceTimes(
        model=config.name,
        config_name=config_name,
        config_sha256=ramped_sha256(config, largest, instances, threads),
        model_sha256=model_digest(served),
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
        mix=mix.title if mix else "",
    )


def climbed(max_batch_size: int, instances: int, in_flight: int | None) -> list[int]:
    """The levels of a ramp, up to `in_flight` requests in flight."""
    steps = levels(max_batch_size, instances)
    if in_flight is None or in_flight >= steps[-1]:
        return steps
    return [*(step for step in steps if step < in_flight), in_flight]


@dataclass(kw_only=True)
class StepSearch:
    """Which sizes to measure by themselves, to find the edges of steps that lie between two counted sizes.

    It halves the gap with the largest jump until the edge is found or the time in the middle is on the straight line.
    """

    gaps: list[tuple[int, int]]
    probes: int = MOST_PROBES

    @classmethod
    def of(cls, curve: Curve) -> "StepSearch":
        """The search in all gaps between the counted sizes of a curve."""
        return cls(gaps=list(itertools.pairwise(curve.counted)))

    def next(self, times_us: Mapping[int, float]) -> int | None:
        """The next size to measure, given the times so far; None at the end."""
        self.gaps = [gap for gap in self.gaps if gap[1] - gap[0] > 1 and _jump(gap, times_us) > JUMP]
        if not self.gaps or not self.probes:
            return None
        self.probes -= 1
        below, above = max(self.gaps, key=lambda gap: _jump(gap, times_us))
        return (below + above) // 2

    def add(self, middle: int, times_us: Mapping[int, float]) -> None:
        """Take the measured time of the size that `next` named."""
        gap = next(gap for gap in self.gaps if gap[0] < middle < gap[1])
        below, above = gap
        self.gaps.remove(gap)
        share = (middle - below) / (above - below)
        height = times_us[above] - times_us[below]
        if abs(times_us[middle] - times_us[below] - share * height) > STRAIGHT * height:
            self.gaps += [(below, middle), (middle, above)]


def _jump(gap: tuple[int, int], times_us: Mapping[int, float]) -> float:
    return times_us[gap[1]] / times_us[gap[0]] - 1


def find_record(
    planned: ServiceTimes, config: ModelConfig, steps: Sequence[int], folder: Path, *, rows: int = 1
) -> ServiceTimes | None:
    """The record in `folder` of the `planned` ramp, or of one with a larger maximum, that climbs as high; else None.

    For requests of several `rows` it must have measured such requests, which no ramp with a mix can. Of several
    records, the one with the planned name, else the smallest.
    """
    records = [record for record in _records(planned, folder) if _same(record, planned, config)]
    records = [record for record in records if rows == 1 or record.wide or record.mix]
    high = [record for record in records if record.levels[-1].concurrency >= steps[-1]]
    return min(high, key=lambda record: (record.file_name != planned.file_name, record.max_batch_size), default=None)


def _records(planned: ServiceTimes, folder: Path) -> Iterator[ServiceTimes]:
    for path in sorted(folder.glob(f"{planned.model}.*.b*.{planned.ending}")):
        try:
            yield load(path)
        except RecordError:
            continue


def _same(record: ServiceTimes, planned: ServiceTimes, config: ModelConfig) -> bool:
    expected = dataclasses.replace(
        planned,
        config_name=record.config_name,
        config_sha256=ramped_sha256(config, record.max_batch_size, planned.instances, planned.threads),
        max_batch_size=record.max_batch_size,
    )
    return record.max_batch_size >= planned.max_batch_size and record.same(expected)


def ramped_sha256(config: ModelConfig, largest: int, instances: int, threads: int | None) -> str:
    """The digest of the configuration with which a ramp is measured."""
    ramped = Candidate(max_batch_size=largest, instances=instances, threads=threads).apply(config)
    return hashlib.sha256(text_format.MessageToString(ramped).encode()).hexdigest()
