"""Are two sets of measurements different? Ratios with their bootstrap intervals, and faster, slower or cannot tell.

A and B are files or folders of records (perf_analyzer's, a fleet's), with :NAME behind them for one configuration of
many, or studies, which stand for what they chose; one study alone (or a folder with one) is its default against its
choice. The exit code is 1 when B is surely slower than A by more than the threshold, so that a pipeline stops there.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from perf.compare.comparison import SLOWER, Line, compare
from perf.records import runs
from perf.stats.bootstrap import LEAST, Interval
from triton_batching import whole_file
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

FORMAT = 1


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 where nothing regressed, 1 where something did, 2 for a mistake in the call or a record."""
    parser = program_parser(
        "python -m perf.compare", __doc__, example="perf/results/readme:baseline perf/results/readme:dynamic"
    )
    parser.add_argument("a", help="what was: PATH, PATH:CONFIGURATION, or a study")
    parser.add_argument("b", nargs="?", help="what is now; left out, A is a study and its choice is meant")
    parser.add_argument("--noise", metavar="PATH", help="A measured once more in turn with A: the noise floor")
    parser.add_argument("--threshold", default="5%", help="a loss above this is a regression (default 5%%)")
    parser.add_argument("--out", type=Path, default=Path("build/compare.json"), help="where the record goes")
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


def show(lines: Sequence[Line], console: Console, *, titles: tuple[str, str]) -> None:
    """Print one table per model and load, and under them what the intervals rest on."""
    console.print(f"A: {titles[0]}\nB: {titles[1]}", markup=False)
    for place in dict.fromkeys((line.model, line.load, line.configs) for line in lines):
        chosen = [line for line in lines if (line.model, line.load, line.configs) == place]
        table = Table(title=f"{place[0]}, {place[1]}", box=box.SIMPLE)
        for name in ("", "A", "B", "B / A (95 %)", "verdict", "A / A"):
            table.add_column(name, justify="left" if name in ("", "verdict") else "right")
        for line in chosen:
            noise = str(line.noise) if line.noise else "-"
            cells = (f"{line.a:.4g}", f"{line.b:.4g} {line.unit}", _text(line.ratio), line.verdict, noise)
            table.add_row(line.quantity, *cells)
        console.print(f"A is {place[2][0]}; B is {place[2][1]}", markup=False, highlight=False)
        console.print(table)
        for remark in dict.fromkeys(map(_remark, chosen)):
            console.print(remark, markup=False, highlight=False)


def _text(ratio: Interval) -> str:
    return f"{ratio.value:.3f} (no interval)" if ratio.low == 0 < ratio.high else str(ratio)


def _remark(line: Line) -> str:
    said = f"{line.runs} {'run' if line.runs == 1 else 'runs'} of each; {line.ratio.method}"
    if 1 < line.runs < LEAST:
        said += f"; {LEAST} of each, measured in turn, would tell more"
    if line.noise is None and line.runs == 1:
        said += f"; what changes from run to run is not in it, so nothing under {line.floor:.0%} counts"
    if line.noise is not None and line.noise.tells:
        said += f"; A differs from itself ({line.quantity} {line.noise}): something else than A and B was at work"
    return f"{said}."


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise Mistake(f"--threshold {text}: not a share. Write 5% or 0.05.")
    return share


def _write(lines: Sequence[Line], titles: tuple[str, str], threshold: float, path: Path) -> Path:
    content = {
        "format": FORMAT,
        "kind": "comparison",
        "a": titles[0],
        "b": titles[1],
        "threshold": threshold,
        "lines": [dataclasses.asdict(line) | {"verdict": line.verdict, "gained": line.gained} for line in lines],
    }
    # An interval without an end has null there, since JSON knows no infinity; so has the ratio of two such values.
    text = json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"
    return whole_file.write(path, text, remedy="Name another file: --out.")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
