"""Service times from the profile of a model, which `perf.simulate` and `perf.tune` read too: of this machine."""

import dataclasses
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.measure import RESULTS
from perf.measure.ramp_plan import find_record, plan
from perf.measure.service_profile import ServiceTimes
from perf.records.candidate import Candidate
from perf.records.size_mix import SizeMix
from perf.simulate.batcher.instances import ServiceTime
from perf.simulate.batcher.request import US, Time
from perf.why.changes import LARGER


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """Which profile is asked for: that of `config`, a variant `config_name` of `repository`, under a `mix` of sizes."""

    config: ModelConfig
    config_name: str | None
    repository: Path
    mix: SizeMix | None
    folder: Path

    @property
    def command(self) -> str:
        """The command that measures it."""
        options: dict[str, object] = {
            "--config-name": self.config_name,
            "--mix": self.mix,
            "--repository": self.repository if self.repository != REPOSITORY else None,
            "--results": self.folder if self.folder != RESULTS else None,
        }
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        if (instances := Candidate.of(self.config).instances) > 1:
            given += ["--instances", str(instances)]
        return shlex.join(("triton-batching", "profile", self.config.name, *given))

    def find(self) -> ServiceTimes | None:
        """The record with the most rows up to `max_batch_size`, or beyond it; None if none is of this machine."""
        return next((record for rows in self._largest() if (record := self._of(rows)) is not None), None)

    def text(self, record: ServiceTimes) -> str:
        """The times of a record in words, and where they come from."""
        service, largest = service_of(record, record.max_batch_size), record.table.counted[-1]
        more = f" and {service(largest) / 1e6:.3g} ms with {largest}" if largest > 1 else ""
        beyond = ", larger ones extrapolated" if largest < self.config.max_batch_size else ""
        return (
            f"{service(1) / 1e6:.3g} ms with 1 row{more}{beyond} (profile of {record.started_at[:10]}: "
            f"{self.folder / record.file_name})"
        )

    def _largest(self) -> Iterator[int]:
        rows = max(1, self.config.max_batch_size)
        while rows:
            yield rows
            rows //= 2

    def _of(self, rows: int) -> ServiceTimes | None:
        """A record of at least so many rows."""
        ramped = ModelConfig()
        ramped.CopyFrom(self.config)
        # A model without batches has no other ramp than its own.
        ramped.max_batch_size = min(rows, self.config.max_batch_size)
        now = Candidate.of(self.config)
        planned = plan(
            ramped,
            config_name=self.config_name or "default",
            instances=now.instances,
            threads=now.threads,
            mix=self.mix,
            repository=self.repository,
        )
        return find_record(planned, ramped, [1], self.folder)


def service_of(record: ServiceTimes, max_batch_size: int) -> ServiceTime:
    """The time of an execution until its instance takes the next one, as far as the largest change that is tried.

    A larger batch may be measured a little faster by noise; no advice relies on that.
    """
    most = LARGER[-1] * max(1, max_batch_size)
    table_us, gap = dataclasses.replace(record, max_batch_size=most).table_us, record.gap
    times = list(itertools.accumulate((table_us[rows] + gap.at(rows) for rows in range(1, most + 1)), max))

    def service(rows: int) -> Time:
        # Padding may count for more rows than any batch has; beyond the curve they take their share of its end.
        return round(times[min(rows, most) - 1] * max(1.0, rows / most) * US)

    return service
