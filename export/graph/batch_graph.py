"""From any graph to one with a proven batch axis: as it is, rewritten, or a failure that names what is in the way."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph import batch_culprit, batch_rewrite
from export.graph.batch_axis import (
    MOST_ROWS,
    NotRowwise,
    NoValidRow,
    Proof,
    choose_rows,
    difference,
    open_session,
    prove,
    run,
    take,
    tolerance_of,
)
from export.graph.input_values import Array, Range, Rows, ranges, read_samples
from export.graph.model_source import Source
from export.graph.onnx_graph import dims, graph_inputs, save
from triton_batching.terminal import Failure, Mistake

MOST_MENDS = 64
UNBATCHED = "To serve it without batching: --batching none."


class BatchAxisError(Failure):
    """The model's first axis is not a batch axis and cannot be made one.

    `reason` names the input or node; `advice` is for a person who asked for batching.
    """

    def __init__(self, reason: str, *, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".rstrip())
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Batched:
    """A graph that takes any number of rows, the proof, and what was changed for it.

    `valid` are the ranges that random values were drawn from, empty where real samples were used. `reference_error` is
    the largest difference from the model in its own framework, or before it was rewritten; None where there is none.
    """

    model: onnx.ModelProto
    proof: Proof
    changes: tuple[str, ...]
    valid: Mapping[str, Range]
    reference_error: float | None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a graph is tried: with which values, how many rows and which tolerance; `say` tells progress."""

    largest: int
    given: Mapping[str, Range]
    samples: Path | None
    tolerance: float | None
    say: Callable[[str], None] = lambda _: None


def batched(source: Source, trial: Trial) -> Batched:
    """Prove the batch axis of `source`, rewriting the graph where it must; raises `BatchAxisError` and `Mistake`."""
    _check_ranks(source)
    _check_names(source, trial.given)
    tolerance = trial.tolerance or tolerance_of(source.model)
    valid = ranges(source.model, trial.given, source.examples)
    rewritten = None
    if any(dims(value)[0] != "" and isinstance(dims(value)[0], int) for value in _edges(source.model)):
        if at_odds := _fixed(source.model):
            raise BatchAxisError(f"{source.origin}: {at_odds}. Export it with a dynamic first axis.")
        trial.say("making the batch axis dynamic")
        rewritten = batch_rewrite.loosen(source.model, _shapes(source, valid, trial))
    for _ in range(MOST_MENDS):
        model = rewritten.model if rewritten else source.model
        with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
            path = Path(folder) / "model.onnx"
            save(model, path)
            session = open_session(path, named=source.named)
        trial.say("comparing batches with their rows")
        culprit: batch_culprit.Culprit | None
        try:
            rows, open_dim = _rows(session, model, valid, trial, rewritten.rows if rewritten else 1)
            proof = prove(session, rows, largest=trial.largest, tolerance=tolerance, open_dim=open_dim)
        except NoValidRow as refused:
            # Constants of the old row count may be what keeps a single row from running.
            culprit = batch_culprit.failing(model, refused.tried) if rewritten else None
            mended = batch_rewrite.mend(rewritten, culprit) if rewritten and culprit else None
            if mended is None:
                raise
            rewritten = mended
            continue
        except NotRowwise as shown:
            trial.say("looking for the node that mixes rows")
            culprit = batch_culprit.find(model, rows, tolerance=tolerance)
            mended = batch_rewrite.mend(rewritten, culprit) if rewritten and culprit else None
            if mended is None:
                raise BatchAxisError(_refusal(source, shown, culprit, rewritten), advice=UNBATCHED) from shown
            rewritten = mended
            continue
        error = _reference_error(source, session, rows, rewritten, tolerance)
        return Batched(
            model=model,
            proof=proof,
            changes=rewritten.changes if rewritten else (),
            valid={} if trial.samples else valid,
            reference_error=error,
        )
    raise BatchAxisError(f"{source.origin}: still not a batch axis after {MOST_MENDS} changes. Export it dynamic.")


def _shapes(source: Source, valid: dict[str, Range], trial: Trial) -> dict[str, list[int]]:
    """The shapes of all tensors at the row count that the graph is fixed to."""
    model = source.model
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        session = open_session(path, named=source.named)
    count = batch_rewrite.fixed_rows(model) or 1
    if trial.samples:
        held = take(read_samples(trial.samples, model), 0, count)
        # Shapes alone are wanted: too few rows are as good when they are repeated.
        rows: Rows = {name: np.resize(array, (count, *array.shape[1:])) for name, array in held.items()}
    else:
        rows, _ = choose_rows(session, model, valid, rows=count, trying=count)
    return batch_culprit.tensor_shapes(model, rows)


def _edges(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [value for value in [*graph_inputs(model), *model.graph.output] if dims(value)]


def _check_ranks(source: Source) -> None:
    for value in graph_inputs(source.model):
        if not dims(value):
            raise BatchAxisError(
                f'{source.origin}: input "{value.name}" is a scalar, so it has no batch axis: requests with different '
                "values cannot share an execution.",
                advice="Export it with a first axis of its own, or use --batching none.",
            )


def _check_names(source: Source, given: Mapping[str, Range]) -> None:
    known = [value.name for value in graph_inputs(source.model)]
    for name in given.keys() - set(known):
        raise Mistake(
            f"{source.origin}: has no input {name} for the range that was given, it has {', '.join(known)}. Name one "
            "of them."
        )


def _fixed(model: onnx.ModelProto) -> str | None:
    """The inputs whose first axes are fixed to different sizes, so that none of them can be the batch."""
    fixed = {value.name: dims(value)[0] for value in graph_inputs(model) if isinstance(dims(value)[0], int)}
    if len(set(fixed.values())) < 2:
        return None
    named = ", ".join(f'"{name}" to {size}' for name, size in fixed.items())
    return f"the inputs fix their first axes to different sizes, {named}, so they hold no common batch"


def _rows(
    session: onnxruntime.InferenceSession, model: onnx.ModelProto, valid: dict[str, Range], trial: Trial, fixed: int
) -> tuple[Rows, int | None]:
    count = max(min(trial.largest, MOST_ROWS), 8, fixed)
    if trial.samples:
        return {name: rows[:count] for name, rows in read_samples(trial.samples, model).items()}, None
    return choose_rows(session, model, valid, rows=count)


def _refusal(
    source: Source,
    shown: NotRowwise,
    culprit: batch_culprit.Culprit | None,
    rewritten: batch_rewrite.Rewritten | None,
) -> str:
    tried = f" even after its {rewritten.rows} fixed rows were made dynamic" if rewritten else ""
    why = f"{culprit}." if culprit else "No single node could be found that does it."
    return (
        f"{source.origin}: the first axis is not a batch axis{tried}, so requests must not run together: {shown}. {why}"
    )


def _reference_error(
    source: Source,
    session: onnxruntime.InferenceSession,
    rows: Rows,
    rewritten: batch_rewrite.Rewritten | None,
    tolerance: float,
) -> float | None:
    """Compare with the framework on all rows, or with the graph as it was on its own row count."""
    answers = _original(source, rows, rewritten)
    if answers is None:
        return None
    count, expected, what = answers
    found = dict(
        zip(
            [output.name for output in session.get_outputs()],
            run(session, take(rows, 0, count)),
            strict=True,
        )
    )
    worst = max(difference(found[name], value) for name, value in expected.items())
    # Two frameworks order their sums differently, so ten times what a batch may differ from its rows.
    if not worst <= 10 * tolerance:
        raise BatchAxisError(
            f"{source.origin}: the graph differs from {what} by {worst:.1e} of its largest value (limit "
            f"{10 * tolerance:.0e}), so it is not the same model. Export it with a dynamic first axis, from .eval()."
        )
    return worst


def _original(
    source: Source, rows: Rows, rewritten: batch_rewrite.Rewritten | None
) -> tuple[int, Mapping[str, Array], str] | None:
    count = rewritten.rows if rewritten else len(next(iter(rows.values())))
    if count > len(next(iter(rows.values()))):
        raise Mistake(
            f"{source.origin}: is fixed to {count} rows, and only {len(next(iter(rows.values())))} were tried."
        )
    some = take(rows, 0, count)
    if source.reference is not None:
        try:
            return count, source.reference(some), "its torch module"
        except Exception as error:
            raise BatchAxisError(f"{source.origin}: its torch module does not run: {error}") from error
    if rewritten is None:
        return None
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(source.model, path)
        session = open_session(path, named=source.named)
    names = [output.name for output in session.get_outputs()]
    return count, dict(zip(names, run(session, some), strict=True)), "the file as it was"
