"""Runs a compiled model in its own runtime: what it returns, and whether its first axis is a batch axis."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from export.compiled.platform import PLAN, TORCHSCRIPT, Platform
from export.compiled.runtime import ELEMENTS, Runtime, declared, graph_of, tensor_of
from export.graph.axis_proof import (
    MOST_ROWS,
    NotRowwise,
    NoValidRow,
    Proof,
    choose_rows,
    one_line,
    prove,
    run,
    take,
    tolerance_of,
)
from export.graph.batched import UNBATCHED, BatchAxisError, Batched, ProofSettings, check_names
from export.graph.input_values import OPEN_SIZES, Array, Range, Rows, open_dims, random_rows, ranges, read_samples
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.signature import Signature, Tensor
from export.graph.source import INSTALL_TORCH, Source
from triton_batching.terminal import Mistake

# Row counts to try, for a model that was compiled for one of them.
COUNTS = (1, 2, 3, 4, 8, 16, 32)
ONE_SIZE = (
    "its open dimensions ran with one size only, so every dimension of an output after the first is written as open "
    "(-1). Write the fixed ones into config.pbtxt, or give fixed inputs with --input."
)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled model to write into the repository.

    `kind` is the only device that it runs on, None if it may be any. `batched` is None if its requests cannot share an
    execution, and `why_not` says why; `rows` are the row counts of one request that were proved then. `note` is a limit
    of what was tried, "" for none.
    """

    platform: Platform
    signature: Signature
    batched: Batched | None
    kind: Literal["cpu", "gpu"] | None = None
    why_not: str = ""
    rows: tuple[int, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Rows that run: `count` of them together; `problem` is why one more does not, "" if it does."""

    rows: Rows
    count: int
    open_dim: int | None
    problem: str


def compiled(
    platform: Platform, path: Path, settings: ProofSettings, inputs: Mapping[str, Tensor], *, batching: str
) -> Compiled:
    """Read, run and prove the model at `path`; `inputs` are types and shapes that the user gives.

    Raises `Mistake` if it cannot be read or run, `BatchAxisError` if it has no batch axis and `batching` is not none.
    """
    runtime = _runtime(platform, path)
    if runtime.most_rows is not None and settings.largest > runtime.most_rows:
        raise Mistake(
            f"{path}: its first profile holds at most {runtime.most_rows} rows, and --max-batch-size is "
            f"{settings.largest}. Write --max-batch-size {runtime.most_rows}, or build it for more."
        )
    model = declared(path.name, runtime, inputs, settings.samples)
    check_names(Source(model=model, origin=path.name), settings.ranges)
    valid = ranges(model, settings.ranges, {})
    settings.say("comparing batches with their rows")
    trial = _trial(runtime, model, valid, settings)
    resized = _resized(runtime, model, trial, valid)
    note = ONE_SIZE if open_dims(model) and resized is None else ""
    signature = _signature(path, runtime, model, trial, resized)
    proof = _proved(runtime, signature, trial, settings)
    if isinstance(proof, Proof) and platform.batches:
        graph = graph_of(signature.inputs, signature.outputs)
        known = {} if settings.samples else valid
        batched = Batched(model=graph, proof=proof, changes=(), valid=known, reference_error=None)
        return Compiled(platform=platform, signature=signature, batched=batched, kind=runtime.kind, note=note)
    why_not = " ".join(_reasons(path, platform, proof))
    if platform.batches and batching != "none":
        raise BatchAxisError(why_not, advice=UNBATCHED)
    rows = proof.batches if isinstance(proof, Proof) else ()
    return Compiled(
        platform=platform,
        signature=signature,
        batched=None,
        kind=runtime.kind,
        why_not=why_not,
        rows=rows,
        note=note,
    )


def _runtime(platform: Platform, path: Path) -> Runtime:
    if platform == PLAN:
        from export.compiled.plan import plan

        return plan(path)
    try:
        from export.compiled import torch_runtime
    except ModuleNotFoundError as error:
        raise Mistake(f"{path}: is {platform.title}, and reading it needs {error.name}. {INSTALL_TORCH}") from error
    return torch_runtime.script(path) if platform == TORCHSCRIPT else torch_runtime.package(path)


def _trial(runtime: Runtime, model: onnx.ModelProto, valid: dict[str, Range], settings: ProofSettings) -> _Trial:
    """The fewest rows that run together; raises `Mistake` if none do."""
    problems: list[NoValidRow] = []
    for count in _counts(runtime, model):
        try:
            rows, open_dim = _rows(runtime, model, valid, settings, count)
        except NoValidRow as error:
            problems.append(error)
            continue
        return _Trial(rows=rows, count=count, open_dim=open_dim, problem=_problem(runtime, rows, count + 1))
    raise next((cause for problem in problems if isinstance(cause := problem.__cause__, Mistake)), problems[0])


def _counts(runtime: Runtime, model: onnx.ModelProto) -> Sequence[int]:
    """One row first, then what the file was made with, then others; at most as many as the file allows."""
    known = [size for value in graph_inputs(model) if isinstance(size := dims(value)[0], int)]
    counts = dict.fromkeys([1, *known, *COUNTS])
    return [count for count in counts if count <= (runtime.most_rows or count)]


def _rows(
    runtime: Runtime, model: onnx.ModelProto, valid: dict[str, Range], settings: ProofSettings, count: int
) -> tuple[Rows, int | None]:
    """Rows of which `count` run together; raises `NoValidRow`."""
    most = max(min(settings.largest, MOST_ROWS), 8, count + 1)
    if settings.samples is None:
        return choose_rows(runtime, model, valid, rows=most, trying=count)
    rows = {name: array[:most] for name, array in read_samples(settings.samples, model).items()}
    if problem := _problem(runtime, rows, count):
        raise NoValidRow(f"{settings.samples}: its first rows do not run ({problem}). Give rows that do.", rows)
    if (given := len(next(iter(rows.values())))) <= count:
        raise Mistake(
            f"{settings.samples}: has {given} rows, and {count} run together. Give {count + 1} or more, which show "
            "whether the number of rows is open."
        )
    return rows, None


def _problem(runtime: Runtime, rows: Rows, count: int) -> str:
    """Why `count` rows do not run; "" if they do."""
    try:
        run(runtime, take(rows, 0, count))
    except Exception as error:
        return one_line(error)
    return ""


def _proved(runtime: Runtime, signature: Signature, trial: _Trial, settings: ProofSettings) -> Proof | NotRowwise:
    """The proof, or why there is none."""
    if trial.count != 1:
        return NotRowwise(f"{trial.count} rows run together, and one row alone does not")
    if trial.problem:
        return NotRowwise(f"one row runs, and 2 rows do not ({trial.problem})")
    tolerance = settings.tolerance or tolerance_of(graph_of(signature.inputs, signature.outputs))
    try:
        return prove(runtime, trial.rows, largest=settings.largest, tolerance=tolerance, open_dim=trial.open_dim)
    except NotRowwise as error:
        return error


def _reasons(path: Path, platform: Platform, proof: Proof | NotRowwise) -> Iterator[str]:
    """Why requests cannot share an execution."""
    if not platform.batches:
        yield (
            f"{path.name}: Triton's {platform.name} would give every request of a batch the answers of the whole batch."
        )
    if isinstance(proof, NotRowwise):
        where = f"{path.name}: the" if platform.batches else "The"
        yield (
            f"{where} first axis is not a batch axis, so the rows of two requests must not run together: {proof}. "
            "Compile the model in eval mode, with an open first axis."
        )


def _signature(
    path: Path, runtime: Runtime, model: onnx.ModelProto, trial: _Trial, resized: list[Array] | None
) -> Signature:
    """The declared inputs and what runs of several sizes return, -1 for each dimension that differs or may."""
    rows = trial.count if trial.problem else -1
    inputs = {name: Tensor(type=tensor.type, shape=(rows, *tensor.shape[1:])) for name, tensor in _tensors(model)}
    counts = (trial.count,) if trial.problem else (trial.count, trial.count + 1)
    answers = [run(runtime, take(trial.rows, 0, count)) for count in counts] + ([resized] if resized else [])
    outputs = {
        name: _output(path, name, [answer[index] for answer in answers]) for index, name in enumerate(runtime.outputs)
    }
    if open_dims(model) and resized is None:
        outputs = {name: _opened(tensor) for name, tensor in outputs.items()}
    return Signature(inputs=inputs, outputs=outputs)


def _opened(tensor: Tensor) -> Tensor:
    return Tensor(type=tensor.type, shape=(tensor.shape[0], *(-1 for _ in tensor.shape[1:])))


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[str, Tensor]]:
    return ((value.name, Tensor.of(value)) for value in graph_inputs(model))


def _resized(runtime: Runtime, model: onnx.ModelProto, trial: _Trial, valid: Mapping[str, Range]) -> list[Array] | None:
    """What the model returns for open dimensions of other sizes than in the trial; None if no other size runs."""
    used = {
        size
        for value in graph_inputs(model)
        for dim, size in zip(dims(value)[1:], trial.rows[value.name].shape[1:], strict=True)
        if not isinstance(dim, int)
    }
    for size in dict.fromkeys([*OPEN_SIZES, *(2 * size for size in sorted(used))]) if used else ():
        if size not in used:
            with contextlib.suppress(Exception):  # the runtimes' own, and `Mistake` for rows that no memory holds
                return run(runtime, random_rows(model, valid, rows=trial.count, open_dim=size))
    return None


def _output(path: Path, name: str, answers: Sequence[Array]) -> Tensor:
    kind, ranks = tensor_of(answers[0]).type, {answer.ndim for answer in answers}
    if kind not in ELEMENTS or ranks == {0} or len(ranks) != 1:
        found = ", ".join(f"{answer.dtype} {list(answer.shape)}" for answer in answers)
        raise Mistake(
            f"{path}: output {name} is {found}, and Triton takes tensors of numbers with one number of dimensions, 1 "
            "or more. Compile a model that returns such."
        )
    sizes = zip(*(answer.shape for answer in answers), strict=True)
    return Tensor(type=kind, shape=tuple(size[0] if len(set(size)) == 1 else -1 for size in sizes))
