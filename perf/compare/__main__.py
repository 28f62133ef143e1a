"""Are two sets of measurements different? Ratios with their bootstrap intervals, and faster, slower or cannot tell.

A and B are files or folders of records (of perf.measure.sweep or perf.load); PATH:NAME takes one configuration of many.
A study of perf.tune stands for its choice; one study alone compares its default with its choice. The exit code is 1 if
B is surely slower than A by more than the threshold, so that a pipeline stops there.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from perf.compare.comparison import SLOWER, QuantityComparison, compare
from perf.records import file, runs
from perf.stats.bootstrap import LEAST, Interval
from triton_batching import whole_file
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FORMAT = 1


def main(argv: list[str] | None = None) -> int:
    """Return 0 without a regression, 1 with one, 2 for a mistake in the call or a record."""
    parser = program_parser(
        "python -m perf.compare", __doc__, example="perf/results/readme:baseline perf/results/readme:dynamic"
    )
    parser.add_argument("a", help="the old records: PATH, PATH:CONFIGURATION, or a study")
    parser.add_argument("b", nargs="?", help="the new records; left out if A is a study whose choice is meant")
    parser.add_argument("--noise", metavar="PATH", help="records of A measured again, in turn with A: the noise floor")
    parser.add_argument("--threshold", default="5%", help="a loss above this is a regression (default 5%%)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/compare.json"), help="file for the result (default build/compare.json)"
    )
    arguments = parser.parse_args(argv)
    return guarded(lambda: _compare(arguments, terminal()))


def _compare(arguments: argparse.Namespace, console: Console) -> int:
    threshold = _share(arguments.threshold)
    a, b = (runs.read(arguments.a), runs.read(arguments.b)) if arguments.b else runs.of_study(Path(arguments.a))
    if a.runs == b.runs:
        console.print(f"A and B are the same records ({a.title}), so nothing can differ.", markup=False)
    lines = compare(a, b, runs.read(arguments.noise).runs if arguments.noise else ())
    regressed = [line for line in lines if line.verdict == SLOWER and -line.gained > threshold]
    show(lines, console, titles=(a.title, b.title))
    for line in regressed:
        console.print(
            f"REGRESSION: {line.quantity} of {line.model} under {line.load} is {-line.gained:.1%} worse "
            f"(threshold {threshold:.1%}).",
            style="red",
            markup=False,
        )
    console.print(f"record: {_write(lines, (a.title, b.title), threshold, arguments.out)}", markup=False)
    return 1 if regressed else 0


def show(lines: Sequence[QuantityComparison], console: Console, *, titles: tuple[str, str]) -> None:
    """Print one table per model and load, each with the basis of its intervals."""
    console.print(f"A: {titles[0]}\nB: {titles[1]}", markup=False)
    for key in dict.fromkeys((line.model, line.load, line.configs) for line in lines):
        matching = [line for line in lines if (line.model, line.load, line.configs) == key]
        table = Table(title=f"{key[0]}, {key[1]}", box=box.SIMPLE)
        for name in ("", "A", "B", "B / A (95 %)", "verdict", "A / A"):
            table.add_column(name, justify="left" if name in ("", "verdict") else "right")
        for line in matching:
            noise = str(line.noise) if line.noise else "-"
            cells = (f"{line.a:.4g}", f"{line.b:.4g} {line.unit}", _text(line.ratio), line.verdict, noise)
            table.add_row(line.quantity, *cells)
        console.print(f"A is {key[2][0]}; B is {key[2][1]}", markup=False, highlight=False)
        console.print(table)
        for remark in dict.fromkeys(map(_remark, matching)):
            console.print(remark, markup=False, highlight=False)


def _text(ratio: Interval) -> str:
    return f"{ratio.value:.3f} (no interval)" if ratio.low == 0 < ratio.high else str(ratio)


def _remark(line: QuantityComparison) -> str:
    remark = f"{line.runs} {'run' if line.runs == 1 else 'runs'} of each; {line.ratio.method}"
    if 1 < line.runs < LEAST:
        remark += f"; {LEAST} of each, measured in turn, would tell more"
    if line.noise is None and line.runs == 1:
        remark += f"; it does not cover changes from run to run, so nothing under {line.floor:.0%} counts"
    if line.noise is not None and line.noise.excludes_one:
        remark += f"; A differs from itself ({line.quantity} {line.noise}): something other than A and B had an effect"
    return f"{remark}."


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise Mistake(f"--threshold {text}: not a share. Write 5% or 0.05.")
    return share


def _write(lines: Sequence[QuantityComparison], titles: tuple[str, str], threshold: float, path: Path) -> Path:
    content = {
        "format": FORMAT,
        "kind": "comparison",
        "a": titles[0],
        "b": titles[1],
        "threshold": threshold,
        "lines": [dataclasses.asdict(line) | {"verdict": line.verdict, "gained": line.gained} for line in lines],
    }
    return whole_file.write(path, file.json_text(content), remedy="Name another file: --out.")


if __name__ == "__main__":
    sys.exit(main())
