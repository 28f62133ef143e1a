"""How the batch policy `aimd` finds its cap on a real server, and finds it again when a row takes three times as long.

The simulated accelerator takes 20 + 0.5 b ms for b rows; more requests wait than a batch may have. Each batch's line in
the server's log is one step: its rows, its time and the cap that allowed it.
"""

import argparse
import asyncio
import datetime
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from rich import box
from rich.progress import Progress
from rich.table import Table

from clients.connection import Connection, connect
from export.repository import config_file, model_folder, read_config
from serve.launcher import Server, Settings, launch
from triton_batching import whole_file
from triton_batching.machine import Machine, versions
from triton_batching.terminal import guarded, program_parser, terminal

MODEL = "simulated_accelerator"
FIXED_MS, ROW_MS, SLA_MS = 20.0, 0.5, 30.0
IN_FLIGHT = 64
SETTLED = 60
"""Batches after which the cap must have settled."""
LINE = re.compile(r"batch_policy \S+: (\d+) rows in ([\d.]+) ms, cap ([\d.]+), \d+ requests waiting")


@dataclass(frozen=True, kw_only=True)
class CapCase:
    """A target and a device: a row takes 0.5 ms, and `row_ms_after` once `after` batches have run (0: never)."""

    name: str
    slo_ms: float
    batches: int
    row_ms_after: float = ROW_MS
    after: int = 0


@dataclass(frozen=True, kw_only=True)
class CapStep:
    """One batch: its rows, its time in ms and the cap that was in force."""

    rows: int
    ms: float
    cap: float


CASES = (
    CapCase(name="target 30 ms", slo_ms=SLA_MS, batches=260),
    CapCase(name="target 27 ms", slo_ms=0.9 * SLA_MS, batches=260),
    CapCase(name="rows cost three times as much", slo_ms=SLA_MS, batches=260, row_ms_after=3 * ROW_MS, after=150),
)


def band(steps: Sequence[CapStep]) -> tuple[int, int]:
    """The smallest and the largest batch."""
    return min(step.rows for step in steps), max(step.rows for step in steps)


def late_share(steps: Sequence[CapStep], limit_ms: float = SLA_MS) -> float:
    """The share of batches that took longer."""
    return sum(step.ms > limit_ms for step in steps) / len(steps)


def batches_until(steps: Sequence[CapStep], rows: int) -> int | None:
    """How many batches ran before the first one of at most `rows` rows; None if there was no such batch."""
    return next((index for index, step in enumerate(steps) if step.rows <= rows), None)


def parts(case: CapCase, steps: Sequence[CapStep]) -> tuple[Sequence[CapStep], Sequence[CapStep]]:
    """The batches that ran with the cap settled before the change, and those behind the change."""
    end = case.after or len(steps)
    return steps[SETTLED:end], steps[end:]


def measure(case: CapCase, progress: Callable[[str], None] = lambda _: None) -> list[CapStep]:
    """The first `case.batches` batches of an instance that has always more requests waiting than it may take."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        _write(case, repository)
        settings = Settings(models=(MODEL,), repository=repository, log=Path(folder) / "tritonserver.log")
        with launch(settings, progress=progress) as server:
            asyncio.run(_load(server, case, progress))
            return read_steps(server.log)[: case.batches]


def read_steps(log: Path) -> list[CapStep]:
    """The batches in a server's log."""
    found = LINE.findall(log.read_text(errors="replace"))
    return [CapStep(rows=int(rows), ms=float(ms), cap=float(cap)) for rows, ms, cap in found]


def _write(case: CapCase, repository: Path) -> None:
    """The simulated accelerator with the case's parameters, for up to 64 rows."""
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
        while (seen := len(read_steps(server.log))) < case.batches:
            progress(f"{case.name}: {seen} of {case.batches} batches")
            await asyncio.sleep(0.5)
        enough.set()

    async with connect(server.grpc_url) as connection:
        await asyncio.gather(watch(), *(client(connection) for _ in range(IN_FLIGHT)))


def write(
    folder: Path, found: Sequence[tuple[CapCase, Sequence[CapStep]]], started_at: str, command: list[str]
) -> Path:
    """One record of all cases; a step is [rows, ms, cap]."""
    content = {
        "format": 1,
        "kind": "aimd_cap",
        "machine": asdict(Machine.this()),
        "versions": versions(),
        "started_at": started_at,
        "command": command,
        "fixed_ms": FIXED_MS,
        "row_ms": ROW_MS,
        "cases": [
            {**asdict(case), "steps": [[step.rows, step.ms, step.cap] for step in steps]} for case, steps in found
        ],
    }
    text = json.dumps(content, indent=None) + "\n"
    return whole_file.write(folder / "aimd_cap.json", text, remedy="Name another folder: --results.")


def read(path: Path) -> list[tuple[CapCase, list[CapStep]]]:
    """The cases of a record."""
    found = []
    for case in json.loads(path.read_text())["cases"]:
        steps = [CapStep(rows=rows, ms=ms, cap=cap) for rows, ms, cap in case.pop("steps")]
        found.append((CapCase(**case), steps))
    return found


def shown(found: Sequence[tuple[CapCase, Sequence[CapStep]]]) -> Table:
    """One line per case; a batch is late when it took longer than 30 ms."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("case", "batches", "rows, settled", "late", "batches to recover", "rows, recovered"):
        made.add_column(title, justify="left" if title == "case" else "right")
    for case, steps in found:
        before, behind = parts(case, steps)
        largest = (SLA_MS - FIXED_MS) // case.row_ms_after
        recovered = batches_until(behind, int(largest))
        after = "" if recovered is None else "{}..{}".format(*band(behind[recovered:]))
        made.add_row(
            case.name,
            str(len(steps)),
            "{}..{}".format(*band(before)),
            f"{late_share(before):.0%}",
            "never" if case.after and recovered is None else str(recovered or ""),
            after,
        )
    return made


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 1 when the server failed."""
    parser = program_parser("python -m perf.studies.aimd_cap", __doc__, example="--results perf/studies/results/policy")
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    command = ["python", "-m", "perf.studies.aimd_cap", *(sys.argv[1:] if argv is None else argv)]
    return guarded(lambda: _report(arguments, command))


def _report(arguments: argparse.Namespace, command: list[str]) -> None:
    console = terminal()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("aimd", total=None)
        found = [(case, measure(case, lambda text: bar.update(task, description=text))) for case in CASES]
    console.print(shown(found))
    if arguments.results:
        written = write(arguments.results, found, started, command)
        console.print(f"written: {written}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
