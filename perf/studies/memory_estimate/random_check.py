"""Hold the estimate to onnxruntime's profile on random graphs: exact, or a bound that contains the truth.

It writes how many graphs have which kind of figures, and all that are wrong, to a record.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import onnx
from rich.progress import track
from rich.table import Table

from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.timeline import Boundary
from perf.records import file
from perf.studies.experiment import Origin, command_line, origin
from perf.studies.memory_estimate.check import mismatches
from perf.studies.memory_estimate.measured import feeds_of, measure
from perf.studies.memory_estimate.random_graph import random_graph
from perf.studies.tables import plain_table
from triton_batching.options import whole_number
from triton_batching.terminal import guarded, program_parser, terminal

FOLDER = Path("perf/results/local/memory/random")
NAME = "graphs.json"
MOST_SEEDS = 100_000
# By seed, in turn: the level of optimisation, the memory pattern, the batch sizes of the runs of one session.
SETTINGS = (
    ("basic", False, (3,)),
    ("all", True, (2, 2)),
    ("all", False, (5, 1)),
    ("extended", True, (4, 4, 1)),
    ("disabled", False, (8,)),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a seed gave: `exact`, `between` two bounds, `at least`; or what is `wrong`, in words."""

    seed: int
    verdict: str
    wrong: str = ""


@dataclass(frozen=True, kw_only=True)
class RandomRecord(Origin):
    """The graphs of the seeds from `first` on: how many by verdict, and those whose estimate is wrong."""

    KIND: ClassVar[str] = "random graphs"
    FORMAT: ClassVar[int] = 1
    first: int
    graphs: Mapping[str, int]
    wrong: tuple[Outcome, ...]


def check(seed: int) -> Outcome:
    """Estimate and run the graph of one seed."""
    level, pattern, sizes = SETTINGS[seed % len(SETTINGS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.onnx"
        onnx.save(random_graph(seed), path)
        feeds = feeds_of("random", path)
        inputs = [feeds(size) for size in sizes]
        measured = [each for run in measure(path, inputs, level=level, pattern=pattern) for each in run]
        model = Model.of(path, level=level, pattern=pattern)
        shapes = [{name: value.shape for name, value in values.items()} for values in inputs]
        least, most = (
            [boundary for run in model.runs(shapes, most=most) for boundary in run.boundaries] for most in (False, True)
        )
    if not model.bounded and not model.unchecked and len(model.orders) > 1:
        last = [order.runs(shapes)[-1].boundaries[-1] for order in model.orders]
        return Outcome(seed=seed, verdict="by order", wrong=_outside(_end(last, min), measured[-1], _end(last, max)))
    if not model.bounded and not model.unchecked:
        wrong = [
            f"{one.field} {one.estimated}, measured {one.measured}, {one.operator} {one.node}"
            for one in mismatches(least, measured)
        ]
        return Outcome(seed=seed, verdict="exact", wrong="; ".join(wrong[:3]))
    is_open = bool(model.unchecked) or any(model.unbounded(model.shapes(each)) for each in shapes)
    verdict = "at least" if is_open else "between"
    low = replace(least[-1], peak=least[-1].least_peak)
    high = None if is_open else replace(most[-1], peak=most[-1].most_peak)
    return Outcome(seed=seed, verdict=verdict, wrong=_outside(low, measured[-1], high))


def _end(boundaries: Sequence[Boundary], choose: Callable[[Iterable[int]], int]) -> Boundary:
    """The end of a session that has the least or the most of all."""
    peak, held = (choose(getattr(boundary, field) for boundary in boundaries) for field in ("peak", "held"))
    return replace(boundaries[0], peak=peak, held=held, next_region=0)


def _outside(least: Boundary, measured: Boundary, most: Boundary | None) -> str:
    """The figures of a session's end that its bounds do not contain."""
    wrong = []
    for field, more in (("peak", 0), ("held", most.next_region if most else 0)):
        value, low = getattr(measured, field), getattr(least, field)
        high = getattr(most, field) + more if most else value
        if not low <= value <= high:
            wrong.append(f"{field} {low} to {high}, measured {value}")
    return "; ".join(wrong)


def main(argv: Sequence[str] | None = None) -> int:
    """Check seeds and print the counts; exit code 1 if an estimate is wrong."""
    program = "python -m perf.studies.memory_estimate.random_check"
    parser = program_parser(program, __doc__, example="--seeds 500")
    parser.add_argument(
        "--seeds", type=whole_number(1, MOST_SEEDS), default=500, metavar="N", help="number of graphs (default: 500)"
    )
    parser.add_argument(
        "--first", type=whole_number(0, MOST_SEEDS), default=0, metavar="SEED", help="the first seed (default: 0)"
    )
    parser.add_argument("--results", type=Path, default=FOLDER, help=f"folder of the record (default: {FOLDER})")
    arguments = parser.parse_args(argv)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    command = command_line("memory_estimate.random_check", argv)
    return guarded(lambda: _check_all(seeds, arguments.results, command))


def _check_all(seeds: range, results: Path, command: Sequence[str]) -> int:
    outcomes = [check(seed) for seed in track(seeds, description="graphs", transient=True)]
    record = RandomRecord(
        first=seeds.start,
        graphs=dict(sorted(Counter(outcome.verdict for outcome in outcomes).items())),
        wrong=tuple(outcome for outcome in outcomes if outcome.wrong),
        **origin(command),
    )
    path = file.write(record, results / NAME)
    terminal().print(table(record))
    for outcome in record.wrong:
        terminal().print(f"seed {outcome.seed}: {outcome.verdict}: {outcome.wrong}", markup=False)
    terminal().print(f"written: {path}", markup=False)
    return 1 if record.wrong else 0


def table(record: RandomRecord) -> Table:
    """How many graphs have which figures, and how many of them are wrong."""
    rows = plain_table(("figures", "graphs", "wrong"))
    wrong = Counter(outcome.verdict for outcome in record.wrong)
    for verdict, count in record.graphs.items():
        rows.add_row(verdict, f"{count:,}", f"{wrong[verdict]:,}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
