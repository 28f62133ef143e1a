"""What a step of the experiment found: its record, and the table of all steps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from perf.records import file
from perf.stats.interval import Interval
from perf.studies.experiment import Origin
from perf.studies.tables import plain_table
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake

CPU, CUDA = "cpu", "cuda"
COMMAND = ("python", "-m", "perf.studies.gpu")
NO_GPU = "not run: no GPU"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table: what was measured, its `value`, and the `limit` that it must not exceed.

    A ratio has the ends of its interval, `low` and `high`, if more than one round was measured. Without a value, `note`
    says why there is none.
    """

    what: str
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    note: str = ""

    @classmethod
    def ratio(cls, what: str, ratio: Interval | None, note: str = "") -> "Finding":
        """A ratio of throughputs; without a value if no round has both."""
        if ratio is None:
            return cls(what=what, note="not measured: perf_analyzer gave no figure for one of the two")
        ends = (ratio.low, ratio.high) if ratio.bounded else (None, None)
        return cls(what=what, value=ratio.value, unit="x", low=ends[0], high=ends[1], note=note)

    @property
    def held(self) -> bool:
        """Whether the value is within its limit; a NaN never is."""
        return self.limit is None or (self.value is not None and self.value <= self.limit)

    @property
    def cells(self) -> tuple[str, str, str]:
        """Value, interval and note as texts."""
        value = "" if self.value is None else f"{self.value:.3g} {self.unit}".strip()
        ends = "" if self.low is None or self.high is None else f"{self.low:.3g} to {self.high:.3g}"
        limit = "" if self.limit is None else f"{'' if self.held else 'OVER THE '}limit {self.limit:g}"
        return value, ends, "; ".join(filter(None, (limit, self.note)))


@dataclass(frozen=True, kw_only=True)
class StepRecord(Origin):
    """A finished step on `device`, which took `seconds`. What it measured in detail is in the folder of its name."""

    KIND: ClassVar[str] = "gpu step"
    FORMAT: ClassVar[int] = 1
    step: str
    device: str
    seconds: float
    findings: tuple[Finding, ...]


def finished(path: Path, device: str) -> StepRecord | None:
    """The record of a step, None if it has none; raises `Mistake` for one of another device, machine or version."""
    if not path.is_file():
        return None
    record = file.read(path, StepRecord)
    if (record.device, record.machine, dict(record.versions)) != (device, Machine.this(), versions()):
        raise Mistake(
            f"{path}: was measured on another device or machine, or with other versions. Name another folder with "
            "--results."
        )
    return record


def table(device: str, found: Iterable[tuple[str, Iterable[Finding]]]) -> Table:
    """The findings by step."""
    shown = plain_table(("step", "what", "value", "95 %", "note"), left=2, title=f"{device}: {Machine.this()}")
    shown.columns[-1].justify = "left"
    for step, findings in found:
        for number, finding in enumerate(findings):
            style = None if finding.held else "red"
            shown.add_row("" if number else step, finding.what, *finding.cells, style=style)
    return shown


def difference(what: str, value: float, limit: float, note: str = "") -> Finding:
    """A difference between answers, as a share of the largest value; a NaN counts as infinite."""
    known = math.inf if math.isnan(value) else value
    return Finding(what=what, value=known, limit=limit, note=note)


def last_line(text: str) -> str:
    """The last line of what a program said, which says why it failed."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
