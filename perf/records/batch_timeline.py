"""The record of some requests as the server traced them: when each came, when its batch ran, and when that ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file
from triton_batching.machine import Machine


@dataclass(frozen=True, kw_only=True)
class TimedRequest:
    """One request: milliseconds from the first arrival of its timeline to its arrival and its execution."""

    arrived_ms: float
    started_ms: float
    ended_ms: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class BatchTimeline:
    """The requests of one configuration with one instance, in order of arrival.

    `delay_us` is the batcher's queue delay, None without dynamic batching.
    """

    KIND: ClassVar[str] = "batch timeline"
    FORMAT: ClassVar[int] = 1

    model: str
    config_name: str
    delay_us: int | None
    max_batch_size: int
    load: str
    machine: Machine
    versions: dict[str, str]
    started_at: str
    command: tuple[str, ...]
    requests: tuple[TimedRequest, ...]

    @property
    def name(self) -> str:
        """The configuration, with its queue delay if it has one."""
        return f"{self.config_name}, {self.delay_us / 1e3:g} ms delay" if self.delay_us else self.config_name

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return f"{self.model}.{self.config_name}.timeline.delay{self.delay_us or 0}.json"

    @property
    def batches(self) -> tuple[tuple[TimedRequest, ...], ...]:
        """The requests by execution, in order: one instance begins an execution after the end of the one before."""
        groups: list[list[TimedRequest]] = []
        for request in sorted(self.requests, key=lambda each: each.started_ms):
            if groups and request.started_ms < min(each.ended_ms for each in groups[-1]):
                groups[-1].append(request)
            else:
                groups.append([request])
        return tuple(map(tuple, groups))


def read(folder: Path) -> tuple[BatchTimeline, ...]:
    """All timelines of a folder: without dynamic batching first, then by rising delay; raises `RecordError`."""
    paths = [path for path in sorted(folder.glob("*.json")) if file.kind_of(path) == BatchTimeline.KIND]
    found = [file.read(path, BatchTimeline) for path in paths]
    return tuple(sorted(found, key=lambda each: (each.model, -1 if each.delay_us is None else each.delay_us)))
