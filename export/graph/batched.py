"""Turns a graph into one with a proven batch axis: unchanged, rewritten, or refused with the node that mixes rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph import culprit, rewrite
from export.graph.axis_proof import (
    MOST_ROWS,
    NotRowwise,
    NoValidRow,
    Proof,
    answers_alone,
    choose_rows,
    count_of,
    names_of,
    prove,
    run,
    session_of,
    take,
)
from export.graph.error_measure import LOOSER, Difference, Measure, Rounding, coarsest
from export.graph.input_values import Array, Range, Rows, ranges, read_samples
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.rewrite import Rewritten
from export.graph.rounding import noise, roundings
from export.graph.row_families import families
from export.graph.source import Source
from triton_batching.terminal import Failure, Mistake

MOST_MENDS = 64


class BatchAxisError(Failure):
    """The model's first axis is not a batch axis and cannot be made one.

    `reason` names the input or node; `advice` says what a user who wants batching can do.
    """

    def __init__(self, reason: str, *, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".rstrip())
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Batched:
    """A graph that takes any number of rows, its proof, and the changes that were made to it.

    `valid` are the ranges of the random values, empty if samples were used. `reference` is the largest difference from
    the model in its own framework, or from the file before it was rewritten; None if there is neither.
    """

    model: onnx.ModelProto
    proof: Proof
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

    Raises `BatchAxisError` if the first axis cannot become a batch axis, `Mistake` for invalid values or samples.
    """
    _check_ranks(source)
    _check_names(source, settings.ranges)
    valid = ranges(source.model, settings.ranges, source.examples)
    rewritten = _loosened(source, valid, settings)
    for _ in range(MOST_MENDS):
        model = rewritten.model if rewritten else source.model
        session = session_of(model, user_path=source.user_path)
        settings.say("comparing batches with their rows")
        try:
            rows, open_dim = _rows(session, model, valid, settings, rewritten.rows if rewritten else 1)
            kinds = [("", rows)] if settings.samples else families(valid, rows)
            limits = roundings(model, settings.tolerance)
            proof = prove(
                session,
                kinds,
                largest=settings.largest,
                roundings=limits,
                noise=partial(noise, model),
                open_dim=open_dim,
            )
        except NoValidRow as error:
            # Constants of the old row count may keep a single row from running.
            node = culprit.failing(model, error.tried) if rewritten else None
            if (mended := _mended(rewritten, node)) is None:
                raise
        except NotRowwise as error:
            settings.say("looking for the node that mixes rows")
            mixed = error.rows if count_of(error.rows) >= culprit.MOST_ROWS else rows
            node = culprit.find(model, mixed, coarsest(limits))
            if (mended := _mended(rewritten, node)) is None:
                raise BatchAxisError(
                    _refusal(source, error, node, rewritten), advice="To serve it without batching: --batching none."
                ) from error
        else:
            return Batched(
                model=model,
                proof=proof,
                changes=rewritten.changes if rewritten else (),
                valid={} if settings.samples else valid,
                reference=_reference(source, session, rows, rewritten, limits),
            )
        rewritten = mended
    raise BatchAxisError(
        f"{source.origin}: the first axis is still not a batch axis after {MOST_MENDS} changes. Export it dynamic."
    )


def _mended(rewritten: Rewritten | None, node: culprit.Culprit | None) -> Rewritten | None:
    """The rewritten graph with one more change; None if the node needs no change, or if the graph was not rewritten."""
    return rewrite.mend(rewritten, node) if rewritten and node else None


def _loosened(source: Source, valid: dict[str, Range], settings: ProofSettings) -> Rewritten | None:
    """The graph with a dynamic first axis; None if it has one already."""
    if not any(isinstance(dims(value)[0], int) for value in _edges(source.model)):
        return None
    if conflict := _conflict(source.model):
        raise BatchAxisError(f"{source.origin}: {conflict}. Export it with a dynamic first axis.")
    settings.say("making the batch axis dynamic")
    return rewrite.loosen(source.model, _shapes(source, valid, settings))


def _shapes(source: Source, valid: dict[str, Range], settings: ProofSettings) -> dict[str, list[int]]:
    """The shapes of all tensors at the row count that the graph is fixed to."""
    model = source.model
    count = rewrite.fixed_rows(model) or 1
    if settings.samples:
        samples = take(read_samples(settings.samples, model), 0, count)
        # Only the shapes matter here, so too few rows are repeated.
        rows: Rows = {name: np.resize(array, (count, *array.shape[1:])) for name, array in samples.items()}
    else:
        rows, _ = choose_rows(session_of(model, user_path=source.user_path), model, valid, rows=count, trying=count)
    return culprit.tensor_shapes(model, rows)


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
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: dict[str, Range],
    settings: ProofSettings,
    fixed: int,
) -> tuple[Rows, int | None]:
    count = max(min(settings.largest, MOST_ROWS), 8, fixed)
    if settings.samples:
        return {name: rows[:count] for name, rows in read_samples(settings.samples, model).items()}, None
    return choose_rows(session, model, valid, rows=count)


def _refusal(
    source: Source,
    error: NotRowwise,
    node: culprit.Culprit | None,
    rewritten: Rewritten | None,
) -> str:
    tried = f" even after its {rewritten.rows} fixed rows were made dynamic" if rewritten else ""
    why = f"{node}." if node else "No single node mixes the rows."
    return (
        f"{source.origin}: the first axis is not a batch axis{tried}, so requests must not run together: {error}. {why}"
    )


def _reference(
    source: Source,
    session: onnxruntime.InferenceSession,
    rows: Rows,
    rewritten: Rewritten | None,
    limits: Sequence[Rounding],
) -> Difference | None:
    """The difference from the framework on all rows, or from the file before the rewrite on its own row count."""
    original = _original(source, rows, rewritten)
    if original is None:
        return None
    count, expected, name = original
    names, outputs = names_of(session), run(session, take(rows, 0, count))
    measure = Measure(names, answers_alone(session, rows), limits, lambda: noise(source.model, rows))
    found = measure.compare(outputs, [expected[output] for output in names], looser=LOOSER)
    if found.exceeds:
        raise BatchAxisError(
            f"{source.origin}: the graph differs from {name} by {found}, so it is not the same model. Export it with a "
            "dynamic first axis, from .eval()."
        )
    return found


def _original(source: Source, rows: Rows, rewritten: Rewritten | None) -> tuple[int, Mapping[str, Array], str] | None:
    """What to compare the graph with: a row count, the outputs for those rows, and a name; None if there is nothing."""
    available = len(next(iter(rows.values())))
    count = rewritten.rows if rewritten else available
    if count > available:
        raise Mistake(f"{source.origin}: is fixed to {count} rows, but there are only {available} rows to try.")
    rows = take(rows, 0, count)
    if source.reference is not None:
        try:
            return count, source.reference(rows), "its torch module"
        except Exception as error:
            raise BatchAxisError(f"{source.origin}: its torch module does not run: {error}") from error
    if rewritten is None:
        return None
    session = session_of(source.model, user_path=source.user_path)
    names = [output.name for output in session.get_outputs()]
    return count, dict(zip(names, run(session, rows), strict=True)), "the file before it was rewritten"
