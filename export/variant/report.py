"""What a variant costs and buys beside its original: a table, notes, and the variant's README."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from export.graph.axis_proof import Proof
from export.variant.accuracy import OutputError, WordsRead
from export.variant.precision import FP16, STATIC

Cells = tuple[str, str, str]
MIB = 2**20


Memory = Mapping[int, int] | str
"""Bytes that one instance holds after batches of each size, or why they are not known."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Original and variant side by side. `memory`, `words` and `proof` are None where there is nothing to compare."""

    names: tuple[str, str]
    file_bytes: tuple[int, int]
    memory: tuple[Memory, Memory] | None
    precision: str | None
    errors: Sequence[OutputError]
    words: WordsRead | None
    limit: float
    proof: Proof | None
    shared_scale: bool
    rounded: bool
    origin: str
    drawn_at_random: bool
    accelerator: str | None
    left_out: Sequence[str]
    source_sha256: str

    def table(self) -> Table:
        """The table that the program prints."""
        return table(self.names, self.cells())

    def cells(self) -> Iterator[Cells]:
        """Each line of the table: what it is, of the original, of the variant."""
        yield "file, MB", f"{self.file_bytes[0] / 1e6:.3g}", f"{self.file_bytes[1] / 1e6:.3g}"
        if self.memory:
            yield from self._memory_cells(*self.memory)
        yield from error_cells(self.errors, self.words, self.limit)
        if proof := self.proof:
            batches = ", ".join(map(str, proof.batches))
            yield f"batches of {batches} against their rows", "-", f"{proof.error:.1e} (limit {proof.tolerance:g})"

    def _memory_cells(self, before: Memory, after: Memory) -> Iterator[Cells]:
        sizes = next((side for side in (before, after) if not isinstance(side, str)), {})
        for size in sizes:
            texts = ["unknown" if isinstance(side, str) else f"{side[size] / MIB:,.1f}" for side in (before, after)]
            yield f"memory after batches of {size}, MiB", texts[0], texts[1]

    @property
    def notes(self) -> list[str]:
        """What the table does not say, a sentence or two each."""
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.errors:
            yield "differences are parts of the output's largest value"
        if self.errors and not self.drawn_at_random:
            yield f"compared on {self.origin}"
        if self.drawn_at_random:
            calibrated = " and calibrated" if self.precision == STATIC else ""
            yield f"compared{calibrated} on {self.origin}, which show little of real ones: give --samples FILE.npz"
        if self.shared_scale:
            yield (
                "rows of a batch change each other's answers: each execution scales its activations by the largest "
                "value of all of its rows. int8-static has fixed scales"
            )
        if self.precision == FP16 and self.errors:
            yield "FP16 is for GPUs: on a CPU onnxruntime computes most operators in FP32"
            yield (
                "the differences are with every tensor rounded to FP16, as on a GPU"
                if self.rounded
                else "the differences are this CPU's, which hides overflow and rounding: measure them on a GPU"
            )
        if self.accelerator == "tensorrt":
            yield "it was not run with TensorRT here: measure its error and its speed on your GPU"
        for name, side in zip(self.names, self.memory or (), strict=False):
            if isinstance(side, str):
                yield f"the memory of {name} is not known: {side}"
        if self.left_out:
            yield f"without {', '.join(self.left_out)}: they serve another file than config.pbtxt"


def table(names: tuple[str, str], rows: Iterable[Cells]) -> Table:
    """A line for each row, under the names of the original and the variant."""
    table = Table("", *names)
    for cells in rows:
        table.add_row(*cells)
    return table


def error_cells(errors: Sequence[OutputError], words: WordsRead | None, limit: float) -> Iterator[Cells]:
    """How the variant's answers differ, also of one that is refused."""
    for error in errors:
        yield f'"{error.output}", largest difference', "-", f"{error.largest:.1e} (limit {limit:g})"
        yield f'"{error.output}", mean difference', "-", f"{error.mean:.1e}"
        if error.agreement is not None:
            yield f'"{error.output}", top-1 agrees', "-", f"{error.agreement:.2%}"
    if words:
        yield "words read right", f"{words.original} of {words.count}", f"{words.variant} of {words.count}"
        yield "words read alike", "-", f"{words.alike} of {words.count}"


def memory(file: Path, sizes: Sequence[int]) -> Memory:
    """What `perf.memory`, a later stage, measures for these batch sizes in its own process; its error as text."""
    with tempfile.TemporaryDirectory() as results:
        batches = ",".join(map(str, sizes))
        ran = later_stage("perf.memory", str(file), "--batch", batches, "--format", "json", "--results", results)
    if ran.returncode:
        return ran.stderr.strip()
    return {line["batch"]: line["held"] for line in json.loads(ran.stdout)["batches"]}


def later_stage(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a later stage in its own process, since this stage imports none of them."""
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)


def file_bytes(file: Path) -> int:
    """The size of an ONNX file, with weights beside it."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))


def readme(report: Report) -> str:
    """The variant's README: the table, the notes, and how to make it again."""
    original, variant = report.names
    rows = "".join(f"| {what} | {before} | {after} |\n" for what, before, after in report.cells())
    notes = "".join(f"- {note[0].upper()}{note[1:].rstrip('.')}.\n" for note in report.notes)
    kind = ", ".join(filter(None, (report.precision, report.accelerator))) or "other threads"
    return (
        f"# {variant}\n\n`{original}` in another form: {kind}. Inputs and outputs are the same. Made by "
        f"`python -m export.variant`, which replaces what is here; change the original instead.\n\n"
        f"| | {original} | {variant} |\n|---|---|---|\n{rows}\n{notes}\n"
        f"The original's file has the SHA-256 `{report.source_sha256}`.\n"
    )
