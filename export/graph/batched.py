"""Turns a graph into one with a proven batch axis: unchanged, rewritten, or refused with the node that mixes rows."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph import changed, culprit, rewrite
from export.graph.axis_proof import (
    MOST_ROWS,
    NotRowwise,
    NoValidRow,
    Proof,
    answers_alone,
    choose_rows,
    count_of,
    names_of,
    one_line,
    onnxruntime_errors,
    prove,
    run,
    session_of,
    take,
)
from export.graph.changed import CrashError
from export.graph.error_measure import LOOSER, Difference, Measure, coarsest
from export.graph.input_values import Array, Range, Rows, ranges, read_samples
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.rewrite import Rewritten
from export.graph.rounding import noise, roundings
from export.graph.row_families import families
from export.graph.rows_first import rows_first
from export.graph.source import Source
from triton_batching.terminal import Failure, Mistake, again

MOST_MENDS = 64
# A larger difference than half of what an element varies by is advised to nobody.
MOST_TOLERANCE = 0.6
# Row counts that are tried with a graph that does not run one row.
ROW_COUNTS = (2, 3, 4, 5, 6, 8, 10, 16, 32)
# How `prove` says that a batch fails, or has another number of answers than rows.
FIXED_ROWS = re.compile(" rows do not run| has shape ")


class BatchAxisError(Failure):
    """The model's first axis is not a batch axis and cannot be made one; the text names the input or node."""


@dataclass(frozen=True, kw_only=True)
class Batched:
    """A graph that takes any number of rows, its proof, and the changes that were made to it.

    `moved` are lines on tensors whose rows were brought first. `valid` are the ranges of the random values, empty if
    samples were used. `reference` is the largest difference from the model in its own framework, or from the file
    before it was rewritten; None if there is neither.
    """

    model: onnx.ModelProto
    proof: Proof
    moved: tuple[str, ...]
    changes: tuple[str, ...]
    valid: Mapping[str, Range]
    reference: Difference | None


@dataclass(frozen=True, kw_only=True)
class ProofSettings:
    """How to prove a graph: the largest batch, ranges of values or an .npz file, and a tolerance.

    A `tolerance` of None is chosen by the graph's types. `say` receives progress messages.
    """

    largest: int
    ranges: Mapping[str, Range]
    samples: Path | None
    tolerance: float | None
    say: Callable[[str], None] = lambda _: None


def batched(source: Source, settings: ProofSettings) -> Batched:
    """Prove the batch axis of `source`, and rewrite the graph where that needs it.

    Raises `BatchAxisError` if the first axis cannot become a batch axis, `Mistake` for invalid values or samples, and
    `CrashError` if onnxruntime does not survive the rewritten graph.
    """
    _check_inputs(source, settings.ranges)
    moved: tuple[str, ...] = ()
    if source.reference is None:  # a torch module has its rows first
        model, moved = rows_first(source.model)
        source = replace(source, model=model)
    valid = ranges(source.model, settings.ranges, source.examples)
    attempt = _Attempt(source=source, settings=settings, valid=valid)
    rewritten = attempt.first()
    for _ in range(MOST_MENDS):
        load = changed.guarded_session_of if moved or rewritten.changes else session_of
        session = load(rewritten.model, user_path=source.user_path)
        settings.say("comparing batches with their rows")
        try:
            rows, open_dim = attempt.rows(session, rewritten)
            proof = attempt.prove(session, rewritten.model, rows, open_dim)
        except NoValidRow as error:
            rewritten = attempt.with_single_rows(rewritten, error)
        except NotRowwise as error:
            rewritten = attempt.with_rows_apart(rewritten, rows, error)
        else:
            return Batched(
                model=rewritten.model,
                proof=proof,
                moved=moved,
                changes=rewritten.changes,
                valid={} if settings.samples else valid,
                reference=attempt.reference(session, rows, rewritten),
            )
    raise BatchAxisError(f"{source.origin}: the first axis is still not a batch axis after {MOST_MENDS} changes.")


def _check_inputs(source: Source, names: Iterable[str]) -> None:
    """Raise `BatchAxisError` for a scalar, `Mistake` if a name of `--range` is not an input."""
    inputs = graph_inputs(source.model)
    for value in inputs:
        if not dims(value):
            raise BatchAxisError(
                f'{source.origin}: input "{value.name}" is a scalar, so it has no batch axis: requests with different '
                "values cannot share an execution. Export it with a first axis of its own."
            )
    known = [value.name for value in inputs]
    for name in names:
        if name not in known:
            raise Mistake(
                f"{source.origin}: --range names {name}, which is not an input. The inputs are {', '.join(known)}."
            )


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """What stays the same while one graph is proved and rewritten."""

    source: Source
    settings: ProofSettings
    valid: dict[str, Range]

    def first(self) -> Rewritten:
        """The graph with a dynamic first axis; the graph itself if it declares one."""
        model = self.source.model
        values = [value for value in [*graph_inputs(model), *model.graph.output] if dims(value)]
        if not any(isinstance(dims(value)[0], int) for value in values):
            return Rewritten(model=model, rows=1)
        fixed = {value.name: dims(value)[0] for value in graph_inputs(model) if isinstance(dims(value)[0], int)}
        if len(set(fixed.values())) > 1:
            sizes = ", ".join(f'"{name}" to {size}' for name, size in fixed.items())
            raise BatchAxisError(
                f"{self.source.origin}: the inputs fix their first axes to different sizes, {sizes}, so they hold no "
                "common batch. Export it with a dynamic first axis."
            )
        self.settings.say("making the batch axis dynamic")
        return self._open(rewrite.fixed_rows(model) or 1)

    def rows(self, session: onnxruntime.InferenceSession, rewritten: Rewritten) -> tuple[Rows, int | None]:
        """The rows to compare, and the size of open dimensions; raises `NoValidRow`."""
        count = max(min(self.settings.largest, MOST_ROWS), 8, rewritten.rows)
        if not self.settings.samples:
            return choose_rows(session, rewritten.model, self.valid, rows=count)
        rows = take(read_samples(self.settings.samples, rewritten.model), 0, count)
        self._check_samples(session, take(rows, 0, 1))
        return rows, None

    def prove(
        self,
        session: onnxruntime.InferenceSession,
        model: onnx.ModelProto,
        rows: Rows,
        open_dim: int | None,
        tolerance: float | None = None,
    ) -> Proof:
        """Compare batches with their rows; `tolerance` replaces that of the settings. Raises `NotRowwise`."""
        return prove(
            session,
            [("", rows)] if self.settings.samples else families(self.valid, rows),
            largest=self.settings.largest,
            roundings=roundings(model, tolerance or self.settings.tolerance),
            noise=partial(noise, model),
            open_dim=open_dim,
        )

    def with_single_rows(self, rewritten: Rewritten, error: NoValidRow) -> Rewritten:
        """The graph with one more change, because one row does not run alone: another number of rows may.

        Raises `error` if no number of rows runs, `BatchAxisError` if no change helps.
        """
        if rewritten.rows == 1 and not rewritten.changes:
            for count in ROW_COUNTS:
                with contextlib.suppress(NoValidRow):
                    return self._open(count)
            raise error
        node = culprit.failing(rewritten.model, error.tried)
        if mended := rewrite.mend(rewritten, node) if node else None:
            return mended
        if rewritten.rows == 1:
            raise error
        raise BatchAxisError(
            f"{self.source.origin}: it runs {rewritten.rows} rows at once and not 1, so its first axis is not a batch "
            f"axis: {node or error}. Let the model work on all rows at once, without a loop over them, and export it "
            "again."
        )

    def with_rows_apart(self, rewritten: Rewritten, rows: Rows, error: NotRowwise) -> Rewritten:
        """The graph with one more change, because a batch does not answer as its rows; raises `BatchAxisError`."""
        self.settings.say("looking for the node that mixes rows")
        tried = f" even after its {rewritten.rows} fixed rows were made dynamic" if rewritten.changes else ""
        refusal = (
            f"{self.source.origin}: the first axis is not a batch axis{tried}, so requests must not run together: "
            f"{error}."
        )
        mixed = error.rows if count_of(error.rows) >= culprit.MOST_ROWS else rows
        try:
            node = culprit.find(rewritten.model, mixed, coarsest(roundings(rewritten.model, self.settings.tolerance)))
        except CrashError as crash:
            raise BatchAxisError(f"{refusal} Its node is not known: {crash}.") from crash
        if mended := rewrite.mend(rewritten, node) if node else None:
            return mended
        # Constant shapes of one row may be in a graph that declares any number of rows.
        if not rewritten.changes and FIXED_ROWS.search(str(error)) and (opened := self._open(1)).changes:
            return opened
        why = f"{node}{self._accepted(rewritten.model, rows, node)}." if node else "No single node mixes the rows."
        raise BatchAxisError(f"{refusal} {why}") from error

    def reference(self, session: onnxruntime.InferenceSession, rows: Rows, rewritten: Rewritten) -> Difference | None:
        """The difference from the framework, or from the file before it was rewritten; None if there is neither."""
        source, available = self.source, count_of(rows)
        if source.reference is None and not rewritten.changes:
            return None
        together = rewritten.rows if rewritten.changes else available
        if available < together:
            raise Mistake(f"{source.origin}: is fixed to {together} rows, but there are only {available} rows to try.")
        rows = take(rows, 0, available - available % together)
        limits, alone = roundings(rewritten.model, self.settings.tolerance), answers_alone(session, rows)
        measure = Measure(names_of(session), alone, limits, partial(noise, rewritten.model, rows))
        found = measure.compare(run(session, rows), _original(source, rows, together), looser=LOOSER)
        if found.exceeds:
            name = "its torch module" if source.reference else "the file before it was rewritten"
            raise BatchAxisError(
                f"{source.origin}: the graph differs from {name} by {found}, so it is not the same model. Export it "
                "with a dynamic first axis, from .eval()."
            )
        return found

    def _accepted(self, model: onnx.ModelProto, rows: Rows, node: culprit.Culprit) -> str:
        """The command that accepts what dynamic quantisation does, with a tolerance that was tried; "" if none is."""
        if node.node.op_type != "DynamicQuantizeLinear":
            return ""
        try:
            found = self.prove(session_of(model), model, rows, None, tolerance=MOST_TOLERANCE).largest
        except NotRowwise:
            return ""
        return f": {again('--tolerance', f'{found.error * 1.5:.1g}')}"

    def _open(self, count: int) -> Rewritten:
        """The graph without its row count, in its shapes and in constant shapes; raises `NoValidRow`."""
        model = self.source.model
        session = session_of(model, user_path=self.source.user_path)
        if self.settings.samples:
            samples = take(read_samples(self.settings.samples, model), 0, count)
            # Only the shapes matter here, so too few rows are repeated.
            rows: Rows = {name: np.resize(array, (count, *array.shape[1:])) for name, array in samples.items()}
            self._check_samples(session, rows)
        else:
            rows, _ = choose_rows(session, model, self.valid, rows=count, trying=count)
        return rewrite.loosen(model, culprit.tensor_shapes(model, rows), count)

    def _check_samples(self, session: onnxruntime.InferenceSession, rows: Rows) -> None:
        try:
            run(session, rows)
        except onnxruntime_errors() as error:
            raise NoValidRow(f"{self.settings.samples}: its rows do not run ({one_line(error)}).", rows) from error


def _original(source: Source, rows: Rows, together: int) -> list[Array]:
    """The outputs of the model as it was, which runs so many rows together."""
    reference = source.reference
    session = None if reference else session_of(source.model, user_path=source.user_path)
    parts = []
    for row in range(0, count_of(rows), together):
        some = take(rows, row, row + together)
        try:
            parts.append(run(session, some) if reference is None else [*reference(some).values()])
        except Exception as error:
            raise BatchAxisError(f"{source.origin}: its original does not run: {error}") from error
    return [np.concatenate(part) for part in zip(*parts, strict=True)]
