"""Turns a graph into one with a proven batch axis: unchanged, rewritten, or refused with the node that mixes rows."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
    choose_rows,
    difference,
    one_line,
    onnxruntime_errors,
    prove,
    run,
    session_of,
    take,
    tolerance_of,
)
from export.graph.changed import CrashError
from export.graph.input_values import Array, Range, Rows, ranges, read_samples
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.rewrite import Rewritten
from export.graph.rows_first import rows_first
from export.graph.source import Source
from triton_batching.terminal import Failure, Mistake, again

MOST_MENDS = 64
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
    samples were used. `reference_error` is the largest difference from the model in its own framework, or from the file
    before it was rewritten; None if there is neither.
    """

    model: onnx.ModelProto
    proof: Proof
    moved: tuple[str, ...]
    changes: tuple[str, ...]
    valid: Mapping[str, Range]
    reference_error: float | None


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
    _check_ranks(source)
    _check_names(source, settings.ranges)
    source, moved = _rows_first(source)
    tolerance = settings.tolerance or tolerance_of(source.model)
    valid = ranges(source.model, settings.ranges, source.examples)
    rewritten = _loosened(source, valid, settings)
    for _ in range(MOST_MENDS):
        load = changed.session_of if moved or rewritten.changes else session_of
        session = load(rewritten.model, user_path=source.user_path)
        settings.say("comparing batches with their rows")
        try:
            rows, open_dim = _rows(session, rewritten, valid, settings)
            proof = prove(session, rows, largest=settings.largest, tolerance=tolerance, open_dim=open_dim)
        except NoValidRow as error:
            rewritten = _with_single_rows(source, rewritten, error, valid, settings)
        except NotRowwise as error:
            rewritten = _with_rows_apart(source, rewritten, error, rows, valid, settings)
        else:
            return Batched(
                model=rewritten.model,
                proof=proof,
                moved=moved,
                changes=rewritten.changes,
                valid={} if settings.samples else valid,
                reference_error=_reference_error(source, session, rows, rewritten, tolerance),
            )
    raise BatchAxisError(f"{source.origin}: the first axis is still not a batch axis after {MOST_MENDS} changes.")


def _rows_first(source: Source) -> tuple[Source, tuple[str, ...]]:
    """The source with the rows of every tensor first, and what was changed; a torch module has them there."""
    if source.reference is not None:
        return source, ()
    model, moved = rows_first(source.model)
    return replace(source, model=model), moved


def _loosened(source: Source, valid: dict[str, Range], settings: ProofSettings) -> Rewritten:
    """The graph with a dynamic first axis; the graph itself if it declares one."""
    if not any(isinstance(dims(value)[0], int) for value in _edges(source.model)):
        return Rewritten(model=source.model, rows=1)
    if conflict := _conflict(source.model):
        raise BatchAxisError(f"{source.origin}: {conflict}. Export it with a dynamic first axis.")
    settings.say("making the batch axis dynamic")
    return _open(source, valid, settings, rewrite.fixed_rows(source.model) or 1)


def _open(source: Source, valid: dict[str, Range], settings: ProofSettings, count: int) -> Rewritten:
    """The graph without its row count `count`, in its shapes and in constant shapes; raises `NoValidRow`."""
    session = session_of(source.model, user_path=source.user_path)
    shapes = culprit.tensor_shapes(source.model, _exactly(session, source.model, valid, settings, count))
    return rewrite.loosen(source.model, shapes, count)


def _exactly(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: dict[str, Range],
    settings: ProofSettings,
    count: int,
) -> Rows:
    """`count` rows that run together; raises `NoValidRow`."""
    if not settings.samples:
        return choose_rows(session, model, valid, rows=count, trying=count)[0]
    samples = take(read_samples(settings.samples, model), 0, count)
    # Only the shapes matter here, so too few rows are repeated.
    rows = {name: np.resize(array, (count, *array.shape[1:])) for name, array in samples.items()}
    _check_runs(session, rows, settings.samples)
    return rows


def _check_runs(session: onnxruntime.InferenceSession, rows: Rows, origin: Path) -> None:
    try:
        run(session, rows)
    except onnxruntime_errors() as error:
        raise NoValidRow(f"{origin}: its rows do not run ({one_line(error)}).", rows) from error


def _with_single_rows(
    source: Source, rewritten: Rewritten, error: NoValidRow, valid: dict[str, Range], settings: ProofSettings
) -> Rewritten:
    """The graph with one more change, because one row does not run alone: other numbers of rows may.

    Raises `error` if no number of rows runs, `BatchAxisError` if no change helps.
    """
    if rewritten.rows == 1 and not rewritten.changes:
        session = session_of(source.model, user_path=source.user_path)
        for count in ROW_COUNTS:
            with contextlib.suppress(NoValidRow):
                _exactly(session, source.model, valid, settings, count)
                return _open(source, valid, settings, count)
        raise error
    node = culprit.failing(rewritten.model, error.tried)
    mended = rewrite.mend(rewritten, node) if node else None
    if mended is None and rewritten.rows == 1:
        raise error
    if mended is None:
        raise BatchAxisError(
            f"{source.origin}: it runs {rewritten.rows} rows at once and not 1, so its first axis is not a batch axis: "
            f"{node or error}. Let the model work on all rows at once, without a loop over them, and export it again."
        )
    return mended


def _with_rows_apart(
    source: Source,
    rewritten: Rewritten,
    error: NotRowwise,
    rows: Rows,
    valid: dict[str, Range],
    settings: ProofSettings,
) -> Rewritten:
    """The graph with one more change, because a batch does not answer as its rows; raises `BatchAxisError`."""
    settings.say("looking for the node that mixes rows")
    tolerance = settings.tolerance or tolerance_of(source.model)
    try:
        node = culprit.find(rewritten.model, rows, tolerance=tolerance)
    except CrashError as crash:
        raise BatchAxisError(f"{_refusal(source, error, rewritten)} Its node is not known: {crash}.") from crash
    mended = rewrite.mend(rewritten, node) if node else None
    if mended is None and not rewritten.changes and FIXED_ROWS.search(str(error)):
        # Constant shapes of one row, in a graph that declares any number of rows.
        opened = _open(source, valid, settings, 1)
        mended = opened if opened.changes else None
    if mended is None:
        why = f"{node}{_accepted(rewritten.model, rows, node)}." if node else "No single node mixes the rows."
        raise BatchAxisError(f"{_refusal(source, error, rewritten)} {why}") from error
    return mended


def _accepted(model: onnx.ModelProto, rows: Rows, node: culprit.Culprit) -> str:
    """The command that accepts what dynamic quantisation does, with a tolerance that was tried; "" for another node."""
    if node.node.op_type != "DynamicQuantizeLinear":
        return ""
    try:
        error = prove(session_of(model), rows, largest=MOST_ROWS, tolerance=0.6).error
    except NotRowwise:
        return ""
    return f": {again('--tolerance', f'{error * 1.5:.1g}')}"


def _edges(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [value for value in [*graph_inputs(model), *model.graph.output] if dims(value)]


def _check_ranks(source: Source) -> None:
    for value in graph_inputs(source.model):
        if not dims(value):
            raise BatchAxisError(
                f'{source.origin}: input "{value.name}" is a scalar, so it has no batch axis: requests with different '
                "values cannot share an execution. Export it with a first axis of its own."
            )


def _check_names(source: Source, names: Iterable[str]) -> None:
    """Raise `Mistake` if a name of `--range` is not an input."""
    inputs = [value.name for value in graph_inputs(source.model)]
    for name in names:
        if name not in inputs:
            raise Mistake(
                f"{source.origin}: --range names {name}, which is not an input. The inputs are {', '.join(inputs)}."
            )


def _conflict(model: onnx.ModelProto) -> str | None:
    """Which inputs fix their first axes to different sizes, so that they hold no common batch; None if none do."""
    fixed = {value.name: dims(value)[0] for value in graph_inputs(model) if isinstance(dims(value)[0], int)}
    if len(set(fixed.values())) < 2:
        return None
    sizes = ", ".join(f'"{name}" to {size}' for name, size in fixed.items())
    return f"the inputs fix their first axes to different sizes, {sizes}, so they hold no common batch"


def _rows(
    session: onnxruntime.InferenceSession, rewritten: Rewritten, valid: dict[str, Range], settings: ProofSettings
) -> tuple[Rows, int | None]:
    count = max(min(settings.largest, MOST_ROWS), 8, rewritten.rows)
    if not settings.samples:
        return choose_rows(session, rewritten.model, valid, rows=count)
    rows = take(read_samples(settings.samples, rewritten.model), 0, count)
    _check_runs(session, take(rows, 0, 1), settings.samples)
    return rows, None


def _refusal(source: Source, error: NotRowwise, rewritten: Rewritten) -> str:
    tried = f" even after its {rewritten.rows} fixed rows were made dynamic" if rewritten.changes else ""
    return f"{source.origin}: the first axis is not a batch axis{tried}, so requests must not run together: {error}."


def _reference_error(
    source: Source, session: onnxruntime.InferenceSession, rows: Rows, rewritten: Rewritten, tolerance: float
) -> float | None:
    """The difference from the framework, or from the file before it was rewritten; None if there is neither."""
    if source.reference is None and not rewritten.changes:
        return None
    name = "its torch module" if source.reference else "the file before it was rewritten"
    available = len(next(iter(rows.values())))
    together = rewritten.rows if rewritten.changes else available
    if available < together:
        raise Mistake(f"{source.origin}: is fixed to {together} rows, but there are only {available} rows to try.")
    rows = take(rows, 0, available - available % together)
    answers = run(session, rows)
    error = max(map(difference, answers, _original(source, rows, together)))
    # Two frameworks sum in different orders, so ten times the tolerance of a batch against its rows.
    if not error <= 10 * tolerance:
        raise BatchAxisError(
            f"{source.origin}: the graph differs from {name} by {error:.1e} of its largest value (limit "
            f"{10 * tolerance:.0e}), so it is not the same model. Export it with a dynamic first axis, from .eval()."
        )
    return error


def _original(source: Source, rows: Rows, together: int) -> list[Array]:
    """The outputs of the model as it was, which runs so many rows together."""
    reference = source.reference
    session = None if reference else session_of(source.model, user_path=source.user_path)
    parts = []
    for row in range(0, len(next(iter(rows.values()))), together):
        some = take(rows, row, row + together)
        try:
            parts.append(run(session, some) if reference is None else [*reference(some).values()])
        except Exception as error:
            raise BatchAxisError(f"{source.origin}: its original does not run: {error}") from error
    return [np.concatenate(part) for part in zip(*parts, strict=True)]
