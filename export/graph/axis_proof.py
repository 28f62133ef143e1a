"""Proves that the first axis of every tensor is a batch axis: a batch gives each row the answer that it gets alone."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph.input_values import OPEN_SIZES, Array, Range, Rows, open_dims, random_rows, remedy
from export.graph.onnx_graph import save
from triton_batching.terminal import Failure, Mistake

BATCHES = (1, 2, 3, 8)
MOST_ROWS = 32
"""Larger batches are proved with this many rows: more rows show nothing new, and pictures take memory."""

HALF_TYPES = {onnx.TensorProto.FLOAT16: 1e-2, onnx.TensorProto.BFLOAT16: 5e-2}
TOLERANCE = 1e-4
# File, line and function of onnxruntime's own code, which precede its message.
CODE = re.compile(r"/onnxruntime_src/.*?\) ")


class NotRowwise(Failure):
    """A batch answers differently from its rows; the text says what differs, not why."""


class NoValidRow(Mistake):
    """Not even one row of random values runs; `tried` are the last rows."""

    def __init__(self, text: str, tried: Rows) -> None:
        super().__init__(text)
        self.tried = tried


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of a proof.

    `batches` are the row counts that ran. `error` is the largest difference of a batch from its rows, divided by the
    largest value of the output. `varied` is False if all rows gave the same answer; such a proof cannot show that rows
    mix. `open_dim` is the size that open dimensions had, None if the graph has none.
    """

    batches: tuple[int, ...]
    error: float
    tolerance: float
    varied: bool
    open_dim: int | None


def open_session(path: Path, *, optimised: bool = True, user_path: str = "") -> onnxruntime.InferenceSession:
    """A quiet session on the CPU.

    Raises `Mistake` if onnxruntime refuses the file; the message names `user_path` instead of a temporary `path`.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        name = user_path or str(path)
        reason = one_line(error).replace(f"Load model from {path} failed:", "").replace(str(path), name)
        raise Mistake(f"{name}: onnxruntime cannot load it: {reason}") from error


def session_of(model: onnx.ModelProto, *, optimised: bool = True, user_path: str = "") -> onnxruntime.InferenceSession:
    """A session as `open_session` makes it, of a graph that is not in a file."""
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        return open_session(path, optimised=optimised, user_path=user_path)


def tolerance_of(model: onnx.ModelProto) -> float:
    """The difference that rounding explains for the graph's coarsest type: kernels sum one row and many differently."""
    types = {tensor.data_type for tensor in model.graph.initializer}
    types |= {value.type.tensor_type.elem_type for value in [*model.graph.input, *model.graph.output]}
    return max([TOLERANCE, *(bound for kind, bound in HALF_TYPES.items() if kind in types)])


def choose_rows(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: dict[str, Range],
    *,
    rows: int,
    trying: int = 1,
) -> tuple[Rows, int | None]:
    """Random rows that the model runs, and the size of its open dimensions (None if it has none).

    Tries the sizes of `OPEN_SIZES` until the first `trying` rows run together; raises `NoValidRow` if none does.
    """
    problem = None
    for size in OPEN_SIZES if open_dims(model) else OPEN_SIZES[:1]:
        drawn = random_rows(model, valid, rows=rows, open_dim=size)
        try:
            run(session, take(drawn, 0, trying))
        except onnxruntime_errors() as error:
            problem = problem or error
            continue
        return drawn, size if open_dims(model) else None
    tried = ", ".join(f"{name} {bounds}" for name, bounds in valid.items())
    raise NoValidRow(
        f"no row of random values runs ({one_line(problem)}). Tried: {tried}. {remedy(problem, model)}",
        drawn,
    ) from problem


def prove(
    session: onnxruntime.InferenceSession, rows: Rows, *, largest: int, tolerance: float, open_dim: int | None = None
) -> Proof:
    """Compare batches of `BATCHES` and `largest` rows with each row alone; raises `NotRowwise` or `Mistake`."""
    count = len(next(iter(rows.values())))
    sizes = tuple(sorted({size for size in (*BATCHES, largest) if size <= min(count, max(largest, 2))}))
    alone = [run(session, take(rows, row, row + 1)) for row in range(count)]
    names = [output.name for output in session.get_outputs()]
    _check_numbers(names, alone)
    _check_repeats(names, alone[0], run(session, take(rows, 0, 1)), tolerance)
    worst = 0.0
    for size in sizes:
        # The first rows and the last: an answer must not depend on the row's place in the batch.
        for start in {0, count - size}:
            try:
                batch = run(session, take(rows, start, start + size))
            except onnxruntime_errors() as error:
                raise NotRowwise(f"{size} rows do not run: {one_line(error)}") from error
            worst = max(worst, _compare(names, batch, alone[start : start + size], tolerance))
    varied = any(
        difference(first, second) != 0 for other in alone[1:] for first, second in zip(alone[0], other, strict=True)
    )
    return Proof(batches=sizes, error=worst, tolerance=tolerance, varied=varied, open_dim=open_dim)


def run(session: onnxruntime.InferenceSession, rows: Rows) -> list[Array]:
    """All outputs for one batch."""
    outputs: list[Array] = session.run(None, dict(rows))
    return outputs


def take(rows: Rows, start: int, end: int) -> Rows:
    """Rows `start` to `end` of every input."""
    return {name: array[start:end] for name, array in rows.items()}


def difference(actual: Array, expected: Array) -> float:
    """Largest difference divided by the largest finite expected value; infinity for another shape.

    Whole numbers and texts differ by 0 or infinity. Two NaN are equal; one NaN differs by infinity.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if actual.dtype.kind not in "fV":
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    if not actual.size:
        return 0.0
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0) or 1.0
    with np.errstate(invalid="ignore"):
        equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        errors = np.where(equal, 0.0, np.abs(actual - expected))
    return float(errors.max() / scale) if not np.isnan(errors).any() else float("inf")


def one_line(error: BaseException | None) -> str:
    """The message of an onnxruntime error on one line, without its source locations, at most 400 characters."""
    return CODE.sub("", " ".join(str(error).split()))[:400]


def onnxruntime_errors() -> tuple[type[BaseException], ...]:
    """The exceptions that `run` raises; they have no common base but Exception."""
    return (Exception,)


def _compare(names: Sequence[str], outputs: list[Array], alone: list[list[Array]], tolerance: float) -> float:
    worst = 0.0
    for index, (name, batch) in enumerate(zip(names, outputs, strict=True)):
        parts = [answer[index] for answer in alone]
        if batch.shape[:1] != (len(alone),):
            raise NotRowwise(f'output "{name}" has shape {list(batch.shape)} for {len(alone)} rows')
        if any(part.shape[:1] != (1,) for part in parts):
            raise NotRowwise(f'output "{name}" has shape {list(parts[0].shape)} for 1 row')
        if len({part.shape for part in parts}) != 1:
            raise NotRowwise(f'the shape of output "{name}" depends on the values of a row')
        error = difference(batch, np.concatenate(parts))
        if not error <= tolerance:
            raise NotRowwise(
                f'output "{name}" of {len(alone)} rows differs from the rows alone by {error:.1e} of its largest value '
                f"(tolerance {tolerance:.0e})"
            )
        worst = max(worst, error)
    return worst


def _check_numbers(names: Sequence[str], alone: list[list[Array]]) -> None:
    for name, output in zip(names, alone[0], strict=True):
        if output.dtype.kind == "f" and not np.isfinite(output).any() and output.size:
            raise Mistake(
                f'output "{name}" has only NaN or infinity for the values tried, so there is nothing to compare. Name '
                "valid values with --range NAME=lo:hi, or give real ones with --samples FILE.npz."
            )


def _check_repeats(names: Sequence[str], first: list[Array], second: list[Array], tolerance: float) -> None:
    for name, before, after in zip(names, first, second, strict=True):
        if not difference(before, after) <= tolerance:
            raise NotRowwise(f'output "{name}" differs between two runs of the same row')
