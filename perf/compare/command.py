"""Prints how two sets of records differ, and writes it: what `python -m perf.compare` does."""

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from perf.compare.comparison import QuantityComparison, compare
from perf.compare.of_study import of_study
from perf.records import file, runs
from perf.records.decision import USE, Decision
from perf.records.decision import of_study as decision_of
from perf.records.runs import Runs
from perf.records.study import Study
from perf.stats.looks import anew
from perf.stats.verdict import differs
from triton_batching import whole_file
from triton_batching.options import refuse_unused
from triton_batching.terminal import Mistake

FORMAT = 1


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compare, print and write; 1 for a regression, else 0."""
    threshold = _share(arguments.threshold)
    alone = not arguments.b and arguments.noise is not None
    refuse_unused((alone, "--noise", "for one study, which has A/A pairs of its own"))
    a, b, lines, study = _of_two(arguments, console) if arguments.b else of_study(Path(arguments.a))
    decision = decision_of(study) if study is not None else None
    regressed = [line for line in lines if line.regressed(threshold) and not _harmless(study, decision)]
    show(lines, console, titles=(a.title, b.title))
    for sentence in _next(lines, decision):
        console.print(sentence, markup=False, highlight=False)
    for line in regressed:
        console.print(
            f"REGRESSION: {line.quantity} of {line.model} under {line.load} is {-line.gained:.1%} worse "
            f"(threshold {threshold:.1%}).",
            style="red",
            markup=False,
        )
    written = _write(lines, (a.title, b.title), threshold, arguments.out, decision)
    console.print(f"written: {written}", markup=False)
    return 1 if regressed else 0


def _of_two(arguments: argparse.Namespace, console: Console) -> tuple[Runs, Runs, list[QuantityComparison], None]:
    """Two sets of records and their lines; they are no study."""
    a, b = runs.read(arguments.a), runs.read(arguments.b)
    if a.runs == b.runs:
        console.print(f"A and B are the same records ({a.title}), so nothing can differ.", markup=False)
    return a, b, compare(a, b, runs.read(arguments.noise).runs if arguments.noise else ()), None


def show(lines: Sequence[QuantityComparison], console: Console, *, titles: tuple[str, str]) -> None:
    """Print one table per model and load, each with the basis of its intervals, and the level of all of them."""
    console.print(f"A: {titles[0]}\nB: {titles[1]}", markup=False)
    for key in dict.fromkeys((line.model, line.load, line.configs) for line in lines):
        matching = [line for line in lines if (line.model, line.load, line.configs) == key]
        table = Table(title=f"{key[0]}, {key[1]}", box=box.SIMPLE)
        for name in ("", "A", "B", "B / A", "verdict on B", "A / A"):
            table.add_column(name, justify="left" if name in ("", "verdict on B") else "right")
        for line in matching:
            noise = str(line.noise) if line.noise else "-"
            cells = (f"{line.a:.4g}", f"{line.b:.4g} {line.unit}", str(line.ratio), str(line.verdict), noise)
            table.add_row(line.quantity, *cells)
        console.print(f"A is {key[2][0]}; B is {key[2][1]}", markup=False, highlight=False)
        console.print(table)
        for remark in dict.fromkeys(map(_remark, matching)):
            console.print(remark, markup=False, highlight=False)
    for sentence in _levels(lines):
        console.print(sentence, markup=False, highlight=False)


def _harmless(study: Study | None, decision: Decision | None) -> bool:
    """Whether a slower B does no harm: the study says to use it all the same, or kept its default."""
    return study is not None and (study.chosen == study.default or (decision is not None and decision.word == USE))


def _next(lines: Sequence[QuantityComparison], decision: Decision | None) -> Iterator[str]:
    """Yield what the study says, and how to measure more rounds."""
    if decision is not None:
        yield decision.sentence(*lines[0].configs)
        if decision.wanted_rounds is not None:
            rounds = decision.wanted_rounds
            yield f"To be certain: the command of the study with --rounds {rounds}."
    elif needed := rounds_needed(lines):
        yield f"To be certain, measure about {needed} of each, in turn. {anew('runs')}"


def _levels(lines: Sequence[QuantityComparison]) -> list[str]:
    """Sentences on the levels of the intervals and of the exit code."""
    first = lines[0]
    of_load = sum((line.load, line.model, line.configs) == (first.load, first.model, first.configs) for line in lines)
    together = 100 * (1 - of_load * (1 - first.ratio.level))
    each = f"Each interval is at {100 * first.ratio.level:.4g} %, so that the {of_load} of one load hold together with "
    sentences = [f"{each}{together:.4g} %."]
    if len(lines) > of_load:
        gate = f"{100 * first.gate.level:.4g} %"
        sentences.append(
            f"The exit code is for all {len(lines)} together: it needs an interval at {gate} that is slower."
        )
    return sentences


def rounds_needed(lines: Sequence[QuantityComparison]) -> int | None:
    """About how many rounds in all decide every line that more rounds can decide; None if there is no such line."""
    verdicts = [(line.runs, line.verdict.more_rounds) for line in lines]
    return max((runs + more for runs, more in verdicts if more is not None), default=None)


def _remark(line: QuantityComparison) -> str:
    if line.runs == 1:
        return "One run of each decides nothing, since runs of the same differ as well."
    remark = f"{line.runs} runs of each; {line.ratio.method}"
    if line.noise is not None and differs(line.noise):
        remark += f"; A differs from itself ({line.quantity} {line.noise}), so B must differ by more than that"
    return f"{remark}."


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise Mistake(f"--threshold {text}: not a share. Write 5% or 0.05.")
    return share


def _write(
    lines: Sequence[QuantityComparison],
    titles: tuple[str, str],
    threshold: float,
    path: Path,
    decision: Decision | None,
) -> Path:
    content = {
        "format": FORMAT,
        "kind": "comparison",
        "a": titles[0],
        "b": titles[1],
        "threshold": threshold,
        "decision": None if decision is None else {"word": decision.word, "reason": decision.reason},
        "lines": [
            dataclasses.asdict(line)
            | {"verdict": line.verdict.word, "more_rounds": line.verdict.more_rounds, "gained": line.gained}
            for line in lines
        ],
    }
    return whole_file.write(path, file.json_text(content), remedy="Name another file: --out.")
