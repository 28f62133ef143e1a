"""The estimate of a model compared with onnxruntime's profile after every node, to the byte."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.timeline import Boundary
from perf.studies.memory_estimate.measured import FIELDS, Feeds, measure

BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How sessions are made, and the batch sizes of the runs of each session."""

    level: str
    pattern: bool
    sessions: tuple[tuple[int, ...], ...]


SETTINGS = {
    "basic": Setting(level="basic", pattern=False, sessions=tuple((size,) for size in BATCHES)),
    "served": Setting(level="all", pattern=True, sessions=(*((size, size) for size in BATCHES), BATCHES * 2)),
}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A field of the `Boundary` after node `at` that differs."""

    at: int
    node: str
    operator: str
    field: str
    estimated: int | str
    measured: int | str


@dataclass(frozen=True, kw_only=True)
class CheckedSession:
    """One session: the batch sizes of its runs, its last boundary estimated and measured, and all mismatches.

    If onnxruntime may run the nodes in several orders, the estimate is that of the order which fits best.
    """

    setting: str
    sizes: tuple[int, ...]
    boundaries: int
    estimated: Boundary
    measured: Boundary
    mismatches: tuple[Mismatch, ...]


def mismatches(estimated: Sequence[Boundary], measured: Sequence[Boundary]) -> Iterator[Mismatch]:
    """All fields of all boundaries that differ; a difference in the number of nodes is one more mismatch."""
    if len(estimated) != len(measured):
        counts = {"estimated": len(estimated), "measured": len(measured)}
        yield Mismatch(at=0, node="", operator="all", field="nodes", **counts)
    for at, (estimate, measurement) in enumerate(zip(estimated, measured, strict=False)):
        for field in ("operator", *FIELDS):
            values = {"estimated": getattr(estimate, field), "measured": getattr(measurement, field)}
            if values["estimated"] != values["measured"]:
                yield Mismatch(at=at, node=measurement.node, operator=measurement.operator, field=field, **values)


def check(
    path: Path, setting: str, feeds: Feeds, *, sessions: Sequence[Sequence[int]] | None = None
) -> list[CheckedSession]:
    """Estimate and run the sessions of a setting, or these `sessions`, of one model."""
    settings = SETTINGS[setting]
    model = Model.of(path, level=settings.level, pattern=settings.pattern)
    return [_session(model, path, setting, feeds, tuple(sizes)) for sizes in sessions or settings.sessions]


def _session(model: Model, path: Path, setting: str, feeds: Feeds, sizes: tuple[int, ...]) -> CheckedSession:
    settings = SETTINGS[setting]
    inputs = [feeds(size) for size in sizes]
    runs = measure(path, inputs, level=settings.level, pattern=settings.pattern)
    measured = [boundary for run in runs for boundary in run]
    shapes = [{name: value.shape for name, value in values.items()} for values in inputs]
    by_order = [[boundary for run in order.runs(shapes) for boundary in run.boundaries] for order in model.orders]
    different = [tuple(mismatches(estimated, measured)) for estimated in by_order]
    at = min(range(len(by_order)), key=lambda at: len(different[at]))
    return CheckedSession(
        setting=setting,
        sizes=sizes,
        boundaries=len(measured),
        estimated=by_order[at][-1],
        measured=measured[-1],
        mismatches=different[at],
    )
