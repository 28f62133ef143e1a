"""Proves that the first axis of every tensor is a batch axis: a batch gives each row the answer that it gets alone."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph.error_measure import Difference, Measure, Rounding
from export.graph.error_measure import largest as largest_of
from export.graph.input_values import Array, Range, Rows, open_dims, open_sizes, random_rows, remedy
from export.graph.onnx_graph import save
from triton_batching.terminal import Failure, Mistake

BATCHES = (1, 2, 3, 8)
MOST_ROWS = 32
"""Larger batches are proved with this many rows: more rows show nothing new, and pictures take memory."""

QUIET_BESIDE_LOUD = 2
"""Rows of the first family in a batch with one row of another."""

# File, line and function of onnxruntime's own code, which precede its message.
CODE = re.compile(r"/onnxruntime_src/.*?\) ")


Noise = Callable[[Rows], Sequence[Array]]
"""What each element of every output changes by if weights and these inputs are rounded otherwise."""


class NotRowwise(Failure):
    """A batch answers differently from its rows; the text says what differs, not why. `rows` are those of the batch."""

    def __init__(self, text: str, rows: Rows) -> None:
        super().__init__(text)
        self.rows = rows


class NoValidRow(Mistake):
    """Not even one row of random values runs; `tried` are the last rows."""

    def __init__(self, text: str, tried: Rows) -> None:
        super().__init__(text)
        self.tried = tried


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of a proof.

    `differences` are the largest of all batches of each row count that ran. `varied` is False if all rows gave the same
    answer; such a proof cannot show that rows mix. `open_dim` is the size that open dimensions had, None if the graph
    has none.
    """

    differences: Mapping[int, Difference]
    varied: bool
    open_dim: int | None

    @property
    def batches(self) -> tuple[int, ...]:
        """The row counts that ran."""
        return tuple(self.differences)

    @property
    def largest(self) -> Difference:
        """The largest difference of a batch from its rows."""
        return largest_of([*self.differences.values()])


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


def choose_rows(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: dict[str, Range],
    *,
    rows: int,
    trying: int = 1,
) -> tuple[Rows, int | None]:
    """Random rows that the model runs, and the size of its open dimensions (None if it has none).

    Tries the sizes of `open_sizes` until the first `trying` rows run together; raises `NoValidRow` if none does.
    """
    problem = None
    for size in open_sizes(model):
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """Rows of one kind, the answers to each alone, and the measure of what these may differ by.

    `beyond` says of which values the rows are, if these may not be valid.
    """

    rows: Rows
    alone: Sequence[Sequence[Array]]
    measure: Measure
    beyond: str = ""

    @classmethod
    def of(
        cls,
        session: onnxruntime.InferenceSession,
        rows: Rows,
        roundings: Sequence[Rounding],
        noise: Noise,
        *,
        finite: bool = False,
        beyond: str = "",
    ) -> "Family":
        """Run each row alone; `noise` is called with the rows if a comparison needs it. Raises `NotRowwise`.

        With `finite` rows that do not run, or have an answer that is not finite, are left out.
        """
        if finite:
            answers = [_finite(session, take(rows, row, row + 1)) for row in range(count_of(rows))]
            rows = {name: array[[answer is not None for answer in answers]] for name, array in rows.items()}
            alone = [answer for answer in answers if answer is not None]
        else:
            alone = answers_alone(session, rows)
        names = names_of(session)
        _check_shapes(names, alone, rows, beyond)
        measure = Measure(names, alone, roundings, lambda: noise(rows))
        return cls(rows=rows, alone=alone, measure=measure, beyond=beyond)


Member = tuple[Family, int]
"""A row in a batch: its family, and its place there."""


def prove(
    session: onnxruntime.InferenceSession,
    families: Sequence[tuple[str, Rows]],
    *,
    largest: int,
    roundings: Sequence[Rounding],
    noise: Noise,
    open_dim: int | None = None,
) -> Proof:
    """Compare batches of `BATCHES` and `largest` rows with each row alone; raises `NotRowwise` or `Mistake`.

    `families` are rows, and which values they have if these may not be valid. Those of the first are valid. Of others,
    rows are left out that do not run or have no finite answer. The rest are compared with one another, and one of them
    is put beside rows of the first.
    """
    first = families[0][1]
    _check_repeats(session, first)
    usual = Family.of(session, first, roundings, noise)
    _check_numbers(names_of(session), usual.alone)
    tried = [Family.of(session, rows, roundings, noise, finite=True, beyond=text) for text, rows in families[1:]]
    others = [family for family in tried if family.alone]
    found: dict[int, list[Difference]] = {}
    for members in batches(usual, others, largest):
        found.setdefault(len(members), []).append(compared(session, members))
    varied = any(not _equal(*pair) for row in usual.alone[1:] for pair in zip(usual.alone[0], row, strict=True))
    differences = {size: largest_of(found[size]) for size in sorted(found)}
    return Proof(differences=differences, varied=varied, open_dim=open_dim)


def _finite(session: onnxruntime.InferenceSession, row: Rows) -> list[Array] | None:
    """The answers to a row; None if it does not run, or one is not finite."""
    try:
        answers = run(session, row)
    except onnxruntime_errors():
        return None
    return answers if all(np.isfinite(answer).all() for answer in answers if answer.dtype.kind == "f") else None


def batches(usual: Family, others: Sequence[Family], largest: int) -> Iterator[list[Member]]:
    """The first rows and the last (an answer must not depend on the place of its row), equal rows, and other kinds."""
    count, most = count_of(usual.rows), max(largest, 2)
    rows = [(usual, row) for row in range(count)]
    for size in sorted(size for size in {*BATCHES, min(largest, count)} if size <= min(count, most)):
        yield rows[:size]
        if size < count:
            yield rows[-size:]
    yield (rows[:1] * 3)[:most]
    for family in others:
        own = [(family, row) for row in range(count_of(family.rows))]
        yield own[:most]
        beside = rows[: min(QUIET_BESIDE_LOUD, most - 1)]
        # A graph may let a row act on later ones only, or on earlier ones. The last family has all of its kinds tried.
        for loud in own if family is others[-1] else own[-1:]:
            yield [*beside, loud]
            yield [loud, *beside]


def compared(session: onnxruntime.InferenceSession, members: Sequence[Member]) -> Difference:
    """The largest difference of a batch from its rows alone; raises `NotRowwise` if that is not rounding."""
    parts = [take(family.rows, row, row + 1) for family, row in members]
    batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    size = len(members)
    beyond = next((family.beyond for family, _ in members if family.beyond), "")
    try:
        outputs = run(session, batch)
    except onnxruntime_errors() as error:
        raise NotRowwise(f"{size} rows do not run: {one_line(error)}{beyond}", batch) from error
    for name, output in zip(names_of(session), outputs, strict=True):
        if output.shape[:1] != (size,):
            raise NotRowwise(f'output "{name}" has shape {list(output.shape)} for {size} rows', batch)
    found = []
    for place, (family, row) in enumerate(members):
        own = [output[place : place + 1] for output in outputs]
        found.append(family.measure.compare(own, family.alone[row], first_row=place))
    worst = largest_of(found)
    if worst.exceeds:
        raise NotRowwise(
            f'output "{worst.output}" of {size} rows differs from the rows alone by {worst}{beyond}', batch
        )
    return worst


def answers_alone(session: onnxruntime.InferenceSession, rows: Rows) -> list[list[Array]]:
    """Every output for each row alone."""
    return [run(session, take(rows, row, row + 1)) for row in range(count_of(rows))]


def names_of(session: onnxruntime.InferenceSession) -> list[str]:
    """The names of the outputs."""
    return [output.name for output in session.get_outputs()]


def count_of(rows: Rows) -> int:
    """How many rows these are."""
    return len(next(iter(rows.values())))


def run(session: onnxruntime.InferenceSession, rows: Rows) -> list[Array]:
    """All outputs for one batch."""
    outputs: list[Array] = session.run(None, dict(rows))
    return outputs


def take(rows: Rows, start: int, end: int) -> Rows:
    """Rows `start` to `end` of every input."""
    return {name: array[start:end] for name, array in rows.items()}


def one_line(error: BaseException | None) -> str:
    """The message of an onnxruntime error on one line, without its source locations, at most 400 characters."""
    return CODE.sub("", " ".join(str(error).split()))[:400]


def onnxruntime_errors() -> tuple[type[BaseException], ...]:
    """The exceptions that `run` raises; they have no common base but Exception."""
    return (Exception,)


def _check_shapes(names: Sequence[str], alone: Sequence[Sequence[Array]], rows: Rows, beyond: str) -> None:
    for index, name in enumerate(names):
        shapes = {answers[index].shape for answers in alone}
        wrong = [list(shape) for shape in shapes if shape[:1] != (1,)]
        if wrong:
            raise NotRowwise(f'output "{name}" has shape {wrong[0]} for 1 row', rows)
        if len(shapes) > 1:
            raise NotRowwise(f'the shape of output "{name}" depends on the values of a row{beyond}', rows)


def _check_numbers(names: Sequence[str], alone: Sequence[Sequence[Array]]) -> None:
    for index, name in enumerate(names):
        outputs = [answers[index] for answers in alone if answers[index].dtype.kind == "f"]
        if any(output.size for output in outputs) and not any(np.isfinite(output).any() for output in outputs):
            raise Mistake(
                f'output "{name}" has only NaN or infinity for the values tried, so there is nothing to compare. Name '
                "valid values with --range NAME=lo:hi, or give real ones with --samples FILE.npz."
            )


def _check_repeats(session: onnxruntime.InferenceSession, rows: Rows) -> None:
    one = take(rows, 0, 1)
    for name, before, after in zip(names_of(session), run(session, one), run(session, one), strict=True):
        if not _equal(before, after):
            raise NotRowwise(f'output "{name}" differs between two runs of the same row', one)


def _equal(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
