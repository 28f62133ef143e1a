"""Prove exported models: the graph fits config.pbtxt, and a batch gives the answers of its rows and of the reference.

`python -m export.verify` proves every exported model; `python -m export` runs the same proof before it replaces a file.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from rich.table import Column, Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export import verify_ragged
from export.graph.ragged_feed import is_ragged
from export.graph.recipe import Recipe
from export.graph.samples import sample
from export.graph.signature import Signature, check
from export.models.catalogue import Exporter, Reference, choose
from export.repository import (
    REPOSITORY,
    RepositoryError,
    add_option,
    config_file,
    model_folder,
    read_config,
    served_file,
    variants,
)
from triton_batching.terminal import Failure, Mistake, complain, guarded, program_parser, terminal

BATCHES = (1, 3, 8)

Arrays = Mapping[str, NDArray[np.generic]]


class ProofError(Failure):
    """An exported file failed its proof."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result for one file.

    Errors are the largest absolute difference over all batches, divided by the largest reference value (at least 1).
    `reference_error` and `parameters` are None without a reference.
    """

    model: str
    outputs: Mapping[str, tuple[int, ...]]
    rows_error: float
    tolerance: float
    reference_error: float | None = None
    parameters: int | None = None


def prove(
    model: str, path: Path, exporter: Exporter, *, repository: Path = REPOSITORY, with_reference: bool = True
) -> Proof:
    """Prove the ONNX file at `path` as the file of `model`.

    Raises `ProofError` if a batch answers wrongly, `RepositoryError` or `SignatureError` if the graph does not fit the
    configurations.
    """
    signature = Signature.of(path)
    config = _checked_config(model, signature, repository)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ragged = is_ragged(config)
    rows_error = (verify_ragged.rows_error if ragged else _rows_error)(config, session, exporter)
    # `not <=` instead of `>`, so that NaN fails.
    if not rows_error <= exporter.tolerance:
        raise ProofError(f"{path}: {_reason(ragged, rows_error, exporter.tolerance)}")
    reference = _reference(model, path, exporter) if with_reference else None
    reference_error = None
    if reference is not None:
        compare = verify_ragged.reference_error if ragged else _reference_error
        reference_error = compare(config, session, exporter, reference)
        if not reference_error <= exporter.tolerance:
            raise ProofError(
                f"{path}: differs from its reference by {reference_error:.1e} (tolerance {exporter.tolerance:.0e}). "
                f"The file does not match its recipe. Export it again: make export ARGS='{model} --force'."
            )
    return Proof(
        model=model,
        outputs={name: tensor.shape for name, tensor in signature.outputs.items()},
        rows_error=rows_error,
        tolerance=exporter.tolerance,
        reference_error=reference_error,
        parameters=None if reference is None else reference.parameters,
    )


def _checked_config(model: str, signature: Signature, repository: Path) -> ModelConfig:
    """config.pbtxt of the model; raises `RepositoryError` if the graph does not fit it or a variant."""
    folder = model_folder(model, repository)
    for variant in [None, *variants(folder)]:
        source = config_file(folder, variant)
        for fault in check(read_config(source), signature):
            raise RepositoryError(f"{source}: {fault}")
    return read_config(config_file(folder, None))


def _rows_error(config: ModelConfig, session: onnxruntime.InferenceSession, _: Exporter) -> float:
    """The largest difference of a batch from its rows alone."""
    inputs = sample(config, rows=max(BATCHES))
    alone = _stack([_run(session, inputs, 1, start=row) for row in range(max(BATCHES))])
    return max(_error(_run(session, inputs, rows), alone) for rows in BATCHES)


def _reference_error(
    config: ModelConfig, session: onnxruntime.InferenceSession, _: Exporter, reference: Reference
) -> float:
    """The largest difference of a batch from the reference on the batch."""
    inputs = sample(config, rows=max(BATCHES))
    return max(
        _error(_run(session, inputs, rows), reference({name: array[:rows] for name, array in inputs.items()}))
        for rows in BATCHES
    )


def _reason(ragged: bool, error: float, tolerance: float) -> str:
    difference = f"by {error:.1e} (tolerance {tolerance:.0e})"
    if ragged:
        return (
            f"an item among longer ones answers differently from the item alone {difference}, so padding reaches its "
            "answer. Mask the positions beyond an item's own length, see export/models/ragged.py."
        )
    return (
        f"a batch answers differently from its rows alone {difference}, so the first axis is not a batch axis. "
        "Export again with a dynamic axis."
    )


def _reference(model: str, path: Path, exporter: Exporter) -> Reference:
    recipe = Recipe.of(path)
    if recipe is None:
        raise ProofError(
            f"{path}: was not written by this project's exporter, so there is no reference to compare it with. "
            f"Export it: make export ARGS={model}. To check only its batch axis: --without-reference."
        )
    try:
        return exporter.reference(recipe, exporter.weights_of(recipe))
    except ModuleNotFoundError as error:
        raise ProofError(
            f"{model}: comparing it with its reference needs {error.name}. Install it: make export ARGS={model}. "
            "To check only the batch axis: --without-reference."
        ) from error


def _run(session: onnxruntime.InferenceSession, inputs: Arrays, rows: int, start: int = 0) -> Arrays:
    names = [node.name for node in session.get_outputs()]
    feed = {name: array[start : start + rows] for name, array in inputs.items()}
    return dict(zip(names, session.run(names, feed), strict=True))


def _stack(answers: list[Arrays]) -> Arrays:
    return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


def _error(actual: Arrays, expected: Arrays) -> float:
    """Largest difference of the rows in `actual` from the first rows of `expected`."""
    return max(
        float(np.abs(array.astype(np.float64) - expected[name][: len(array)].astype(np.float64)).max())
        / max(1.0, float(np.abs(expected[name]).max()))
        for name, array in actual.items()
    )


def table(proofs: list[Proof]) -> Table:
    """A table of the proofs for the terminal."""
    grid = Table(
        Column("model", no_wrap=True),
        Column("parameters", justify="right", no_wrap=True),
        Column("output", no_wrap=True),
        "vs rows",
        "vs ref.",
        Column("limit", no_wrap=True),
        caption="largest difference of a batch from its rows alone, and from the torch or numpy reference",
    )
    for proof in proofs:
        grid.add_row(
            proof.model,
            "-" if proof.parameters is None else f"{proof.parameters:,}",
            ", ".join(_shape(shape) for shape in proof.outputs.values()),
            f"{proof.rows_error:.1e}",
            "-" if proof.reference_error is None else f"{proof.reference_error:.1e}",
            f"{proof.tolerance:.0e}",
        )
    return grid


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ",".join("B" if dim == -1 else str(dim) for dim in shape) + ")"


def verify(chosen: Mapping[str, Exporter], *, repository: Path, with_reference: bool) -> int:
    """Print a proof of each model; returns 1 if a proof fails or a file is missing, else 0."""
    console = terminal()
    proofs, failures = [], []
    for model, exporter in chosen.items():
        path = served_file(model, repository)
        if not path.is_file():
            failures.append(f"{path}: not exported yet. Run: make export ARGS={model}.")
            continue
        try:
            with console.status(f"proving {model}"):
                proofs.append(prove(model, path, exporter, repository=repository, with_reference=with_reference))
        except (Failure, Mistake) as error:
            failures.append(f"{model}: {error}")
    if proofs:
        console.print(table(proofs))
    for failure in failures:
        complain(failure)
    return 1 if failures else 0


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 1 if a proof fails or a file is missing, 2 for a wrong name."""
    parser = program_parser("python -m export.verify", __doc__, example="ranker")
    parser.add_argument("models", nargs="*", help="models to prove (default: all)")
    parser.add_argument("--weights", type=Path, help="the state dict that the named model was exported from")
    parser.add_argument("--without-reference", action="store_true", help="check only the batch axis (needs no torch)")
    add_option(parser)
    arguments = parser.parse_args(argv)
    return guarded(
        lambda: verify(
            choose(arguments.models, weights=arguments.weights),
            repository=arguments.repository,
            with_reference=not arguments.without_reference,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
