"""How the batch policy `aimd` finds its cap on a real server, and finds it again when a row takes three times as long.

The simulated accelerator takes 20 + 0.5 b ms for b rows, and more requests wait than a batch may have. The server's log
has a line for each batch: its rows, its time and the cap at that moment.
"""

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from google.protobuf import text_format
from rich.table import Table

from clients.async_connection import Connection, connect
from export.repository import config_file, model_folder, read_config
from perf.records import file
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.tables import plain_table
from serve.launcher import Server, Settings, launch
from triton_batching.terminal import guarded, program_parser, terminal

MODEL = "simulated_accelerator"
FIXED_MS, ROW_MS, SLA_MS = 20.0, 0.5, 30.0
IN_FLIGHT = 64
# Batches after which the cap must have settled.
SETTLED = 60
LINE = re.compile(r"batch_policy \S+: (\d+) rows in ([\d.]+) ms, cap ([\d.]+), \d+ requests waiting")
NAME = "aimd_cap.json"


class CapBatch(msgspec.Struct, frozen=True, array_like=True):
    """One batch: its rows, its time in ms, and the cap at that moment."""

    rows: int
    ms: float
    cap: float


@dataclass(frozen=True, kw_only=True)
class CapCase:
    """A target and a device: a row takes 0.5 ms, and `row_ms_after` once `after` batches have run (0: never)."""

    name: str
    slo_ms: float
    batches: int
    row_ms_after: float = ROW_MS
    after: int = 0


@dataclass(frozen=True, kw_only=True)
class MeasuredCase(CapCase):
    """A case and its batches in order."""

    steps: tuple[CapBatch, ...]

    @property
    def settled(self) -> Sequence[CapBatch]:
        """The batches with a settled cap, before the change of the device."""
        return self.steps[SETTLED : self.after or len(self.steps)]

    @property
    def after_change(self) -> Sequence[CapBatch]:
        """The batches after the change of the device."""
        return self.steps[self.after or len(self.steps) :]

    @property
    def recovery(self) -> int | None:
        """The batches between the change and the first one that is in time; None if no batch was."""
        return batches_until(self.after_change, int((SLA_MS - FIXED_MS) // self.row_ms_after))


@dataclass(frozen=True, kw_only=True)
class CapRecord(Origin):
    """All cases, on a device of `fixed_ms` + `row_ms` x rows."""

    KIND: ClassVar[str] = "aimd_cap"
    FORMAT: ClassVar[int] = 1
    fixed_ms: float = FIXED_MS
    row_ms: float = ROW_MS
    cases: tuple[MeasuredCase, ...]


CASES = (
    CapCase(name="target 30 ms", slo_ms=SLA_MS, batches=260),
    CapCase(name="target 27 ms", slo_ms=0.9 * SLA_MS, batches=260),
    CapCase(name="rows cost three times as much", slo_ms=SLA_MS, batches=260, row_ms_after=3 * ROW_MS, after=150),
)


def band(batches: Sequence[CapBatch]) -> tuple[int, int]:
    """The smallest and the largest number of rows."""
    return min(batch.rows for batch in batches), max(batch.rows for batch in batches)


def late_share(batches: Sequence[CapBatch], limit_ms: float = SLA_MS) -> float:
    """The share of batches that took longer than `limit_ms`."""
    return sum(batch.ms > limit_ms for batch in batches) / len(batches)


def batches_until(batches: Sequence[CapBatch], rows: int) -> int | None:
    """The number of batches before the first one of at most `rows` rows; None if there is no such batch."""
    return next((index for index, batch in enumerate(batches) if batch.rows <= rows), None)


def measure(case: CapCase, progress: Callable[[str], None] = lambda _: None) -> MeasuredCase:
    """Measure a case: more requests than fit into a batch wait at every moment."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        _write_model(case, repository)
        settings = Settings(models=(MODEL,), repository=repository, log=Path(folder) / "tritonserver.log")
        with launch(settings, progress=progress) as server:
            asyncio.run(_load(server, case, progress))
            return MeasuredCase(**asdict(case), steps=tuple(read_batches(server.log)[: case.batches]))


def read_batches(log: Path) -> list[CapBatch]:
    """The batches in a server's log."""
    lines = LINE.findall(log.read_text(errors="replace"))
    return [CapBatch(int(rows), float(ms), float(cap)) for rows, ms, cap in lines]


def _write_model(case: CapCase, repository: Path) -> None:
    """Write the simulated accelerator with the case's parameters, for up to 64 rows."""
    source = model_folder(MODEL)
    shutil.copytree(source / "1", repository / MODEL / "1", ignore=shutil.ignore_patterns("__pycache__"))
    config = read_config(config_file(source, None))
    config.max_batch_size = IN_FLIGHT
    values = {
        "fixed_ms": FIXED_MS,
        "row_ms": ROW_MS,
        "row_ms_after": case.row_ms_after,
        "after_executions": case.after,
        "batch_policy": "aimd",
        "slo_ms": case.slo_ms,
        "batch_policy_log": "true",
    }
    for key, value in values.items():
        config.parameters[key].string_value = str(value)
    (repository / MODEL / "config.pbtxt").write_text(text_format.MessageToString(config))


async def _load(server: Server, case: CapCase, progress: Callable[[str], None]) -> None:
    """Keep requests in flight until the log has enough batches."""
    config = server.configs[MODEL]
    inputs = {config.input[0].name: np.zeros((1, *config.input[0].dims), dtype=np.float32)}
    enough = asyncio.Event()

    async def client(connection: Connection) -> None:
        while not enough.is_set():
            await connection.infer(MODEL, inputs)

    async def watch() -> None:
        while (count := len(read_batches(server.log))) < case.batches:
            progress(f"{case.name}: {count} of {case.batches} batches")
            await asyncio.sleep(0.5)
        enough.set()

    async with connect(server.grpc_url) as connection:
        await asyncio.gather(watch(), *(client(connection) for _ in range(IN_FLIGHT)))


def table(cases: Sequence[MeasuredCase]) -> Table:
    """A row for each case; a batch is late if it took longer than 30 ms."""
    titles = ("case", "batches", "rows, settled", "late", "batches to recover", "rows, recovered")
    rows = plain_table(titles)
    for case in cases:
        recovery = case.recovery
        recovered = "" if recovery is None else "{}..{}".format(*band(case.after_change[recovery:]))
        rows.add_row(
            case.name,
            str(len(case.steps)),
            "{}..{}".format(*band(case.settled)),
            f"{late_share(case.settled):.0%}",
            "never" if case.after and recovery is None else str(recovery or ""),
            recovered,
        )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 if the server failed."""
    parser = program_parser("python -m perf.studies.aimd_cap", __doc__, example="--results perf/studies/results/policy")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments.results, command_line("aimd_cap", argv)))


def _run(results: Path | None, command: Sequence[str]) -> None:
    started_at = now()
    with progress_line("aimd") as progress:
        cases = tuple(measure(case, progress) for case in CASES)
    terminal().print(table(cases))
    if results:
        path = file.write(CapRecord(cases=cases, **origin(command, started_at)), results / NAME)
        terminal().print(f"record: {path}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
