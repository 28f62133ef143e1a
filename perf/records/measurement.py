"""Records of sweeps: measurements with perf_analyzer, and ceilings.

A record is never edited. If the configuration, the model file, the machine or a version has changed since, it is
measured again and replaced.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from perf.records import file
from perf.records.batch_timeline import BatchTimeline
from perf.records.file import RecordError as RecordError
from perf.records.resource_use import ResourceUse
from serve.management.statistics import Counters
from triton_batching.machine import Machine

# How the `data` of valid inputs begins.
SAMPLES_DATA = "samples"


@dataclass(frozen=True, kw_only=True)
class AnalyzerLoad:
    """The load that perf_analyzer offers: a closed loop of `concurrency` requests in flight, `request_rows` rows each.

    `percentile` is the latency that perf_analyzer prints for each of its three windows of at least `window_ms`. `data`
    is `samples` (seeded valid inputs; `samples of mix 20,30 DIGEST` with `--mix`), `random` or `zero`. `shapes` sets
    the dims of inputs.
    """

    concurrency: int
    request_rows: int = 1
    protocol: str = "http"
    percentile: int = 95
    window_ms: int = 1000
    data: str = SAMPLES_DATA
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    shared_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class AnalyzerWindow:
    """One window of perf_analyzer; the latency is `AnalyzerLoad.percentile`."""

    throughput_rows_per_s: float
    latency_us: float


@dataclass(frozen=True, kw_only=True)
class AnalyzerResult:
    """What perf_analyzer measured, over all windows; values are None if it gave up and printed no summary.

    Latencies are per request. `network_us` is the time between client and server, both ways.
    """

    window_ms: int
    windows: tuple[AnalyzerWindow, ...]
    throughput_rows_per_s: float
    requests: int | None = None
    mean_us: float | None = None
    p50_us: float | None = None
    p90_us: float | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    client_send_us: float | None = None
    network_us: float | None = None
    client_receive_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasurementKey:
    """What a measurement is of: its record is reused only if all of this is equal.

    Digests are SHA-256 of the configuration file and of the model file.
    """

    model: str
    config_name: str
    config_sha256: str
    model_sha256: str
    load: AnalyzerLoad
    repeat: int
    machine: Machine
    versions: Mapping[str, str]

    @property
    def file_name(self) -> str:
        """The name of the record: model, configuration, protocol, rows, digest of the load, concurrency and repeat.

        The digest is the start of the SHA-256 of the load as text. Its form must stay as it is, so that committed
        records are found again.
        """
        load = self.load
        values = dataclasses.asdict(load) | {"concurrency": 0}
        text = f"Load({', '.join(f'{name}={value!r}' for name, value in values.items())})"
        digest = hashlib.sha256(text.encode()).hexdigest()[:6]
        return (
            f"{self.model}.{self.config_name}.{load.protocol}.b{load.request_rows}.{digest}"
            f".c{load.concurrency:03d}.r{self.repeat}.json"
        )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement, with the server's counters before and after it and the command.

    `wasted` is the share of the computed elements that was padding, None if the backend does not count it.
    `order_seed` drew the order of the configurations in each repeat of a sweep; None in older records, which have the
    order of the command line. `used` is what the server used under the load.
    """

    KIND: ClassVar[str] = "record"
    FORMAT: ClassVar[int] = 1

    point: MeasurementKey
    started_at: str
    command: tuple[str, ...]
    measured: AnalyzerResult
    before: Counters
    after: Counters
    wasted: float | None = None
    order_seed: int | None = None
    used: ResourceUse = field(default_factory=ResourceUse)

    @property
    def counters(self) -> Counters:
        """What the server counted during the measurement."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Throughput of onnxruntime without a server: rows per second by batch size, one value per round."""

    KIND: ClassVar[str] = "ceiling"
    FORMAT: ClassVar[int] = 1

    model: str
    model_sha256: str
    threads: int
    repeat: int
    machine: Machine
    versions: Mapping[str, str]
    started_at: str
    rows_per_s: Mapping[int, tuple[float, ...]]

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return f"{self.model}.ceiling.t{self.threads}.r{self.repeat}.json"


KINDS: dict[str, type[Measurement] | type[Ceiling]] = {kind.KIND: kind for kind in (Measurement, Ceiling)}


def write(entry: Measurement | Ceiling, folder: Path) -> Path:
    """Write one file, whole or not at all, and return its path; raises `RecordError`."""
    name = entry.point.file_name if isinstance(entry, Measurement) else entry.file_name
    return file.write(entry, folder / name)


def read(folder: Path) -> Iterator[Measurement | Ceiling]:
    """All records of a folder, by file name, without timelines; raises `RecordError` for a file that is not one."""
    for path in sorted(folder.glob("*.json")):
        if file.kind_of(path) != BatchTimeline.KIND:
            yield load(path)


def load(path: Path) -> Measurement | Ceiling:
    """The record of a file; raises `RecordError`."""
    return file.read(path, KINDS.get(file.kind_of(path), Measurement))


def is_record(path: Path) -> bool:
    """Whether a file says that it is a measurement or a ceiling, in whatever format."""
    return file.kind_of(path) in KINDS


class Store:
    """The records of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, point: MeasurementKey) -> Measurement | None:
        """The measurement with this key; None if there is none."""
        record = self._load(point.file_name)
        return record if isinstance(record, Measurement) and record.point == point else None

    def has_ceiling(self, planned: Ceiling) -> bool:
        """Whether there is a ceiling of this model file, thread count, machine and repeat."""
        return _same_ceiling(self._load(planned.file_name), planned)

    def add(self, entry: Measurement | Ceiling) -> Path:
        """Write a record and return its path; raises `RecordError`."""
        return write(entry, self.folder)

    def _load(self, name: str) -> Measurement | Ceiling | None:
        try:
            return load(self.folder / name)
        except RecordError:
            return None


def _same_ceiling(entry: object, planned: Ceiling) -> bool:
    return isinstance(entry, Ceiling) and dataclasses.replace(
        entry, started_at="", rows_per_s={}
    ) == dataclasses.replace(planned, started_at="", rows_per_s={})
