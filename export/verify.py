"""Prove exported models: the graph fits config.pbtxt, a batch answers as its rows do alone and as the reference does.

`python -m export.verify` proves every exported model; `python -m export` runs the same proof before it keeps a file.
"""

import argparse
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
from export.catalogue import Exporter, Reference, catalogue
from export.ragged_feed import is_ragged
from export.recipe import Recipe
from export.repository import (
    REPOSITORY,
    RepositoryError,
    config_file,
    model_file,
    model_folder,
    read_config,
    variants,
)
from export.samples import sample
from export.signature import Signature, SignatureError, check
from export.terminal import complain, terminal

BATCHES = (1, 3, 8)

Arrays = Mapping[str, NDArray[np.generic]]


class ProofError(Exception):
    """An exported file that does not hold what is claimed of it."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was shown of one file.

    Errors are the largest absolute difference over the largest reference value (at least 1), over all batches;
    `reference_error` and `parameters` are None when the reference could not be built (`why` says the reason).
    """

    model: str
    outputs: Mapping[str, tuple[int, ...]]
    rows_error: float
    tolerance: float
    reference_error: float | None = None
    parameters: int | None = None
    why: str = ""


def prove(model: str, path: Path, exporter: Exporter, *, repository: Path = REPOSITORY) -> Proof:
    """Prove the ONNX file at `path` as `model`; raises `ProofError`, `RepositoryError` or `SignatureError`."""
    folder = model_folder(model, repository)
    signature = Signature.of(path)
    for variant in [None, *variants(folder)]:
        source = config_file(folder, variant)
        for fault in check(read_config(source), signature):
            raise ProofError(f"{source}: {fault}")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    config = read_config(config_file(folder, None))
    reference, why = _reference(path, exporter)
    compare = verify_ragged.differences if is_ragged(config) else _differences
    rows_error, reference_error = compare(config, session, exporter, reference)
    if not rows_error <= exporter.tolerance:
        raise ProofError(f"{path}: {_mixed_up(config, rows_error, exporter.tolerance)}")
    if reference_error is not None and not reference_error <= exporter.tolerance:
        raise ProofError(
            f"{path}: differs from its reference by {reference_error:.1e} (tolerance {exporter.tolerance:.0e}). "
            f"The file is not what its recipe says: export it again with python -m export {model} --force."
        )
    return Proof(
        model=model,
        outputs={name: tensor.shape for name, tensor in signature.outputs.items()},
        rows_error=rows_error,
        tolerance=exporter.tolerance,
        reference_error=reference_error,
        parameters=None if reference is None else reference.parameters,
        why=why,
    )


def _differences(
    config: ModelConfig, session: onnxruntime.InferenceSession, exporter: Exporter, reference: Reference | None
) -> tuple[float, float | None]:
    """The largest differences of a batch from its rows alone, and from the reference on the batch."""
    inputs = sample(config, rows=max(BATCHES))
    answers = {rows: _run(session, inputs, rows) for rows in BATCHES}
    alone = _stack([_run(session, inputs, 1, start=row) for row in range(max(BATCHES))])
    rows_error = max(_error(answers[rows], alone) for rows in BATCHES)
    if reference is None:
        return rows_error, None
    expected = {rows: reference({name: array[:rows] for name, array in inputs.items()}) for rows in BATCHES}
    return rows_error, max(_error(answers[rows], expected[rows]) for rows in BATCHES)


def _mixed_up(config: ModelConfig, error: float, tolerance: float) -> str:
    found = f"by {error:.1e} (tolerance {tolerance:.0e})"
    if is_ragged(config):
        return (
            f"an item among longer ones answers differently from the item alone {found}, so padding reaches its "
            "answer. Mask what lies beyond an item's own length, see export/ragged.py."
        )
    return (
        f"a batch answers differently from its rows alone {found}, so the first axis is not a batch axis. "
        "Export again with a dynamic axis."
    )


def _reference(path: Path, exporter: Exporter) -> tuple[Reference | None, str]:
    recipe = Recipe.of(path)
    if recipe is None:
        return None, "written by another exporter"
    try:
        return exporter.reference(recipe), ""
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed (make setup, then make export)"
    except ValueError as error:
        return None, str(error)


def _run(session: onnxruntime.InferenceSession, inputs: Arrays, rows: int, start: int = 0) -> Arrays:
    names = [node.name for node in session.get_outputs()]
    feed = {name: array[start : start + rows] for name, array in inputs.items()}
    return dict(zip(names, session.run(names, feed), strict=True))


def _stack(answers: list[Arrays]) -> Arrays:
    return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


def _error(found: Arrays, expected: Arrays) -> float:
    """Largest difference of the rows in `found` from the first rows of `expected`."""
    return max(
        float(np.abs(array.astype(np.float64) - expected[name][: len(array)].astype(np.float64)).max())
        / max(1.0, float(np.abs(expected[name]).max()))
        for name, array in found.items()
    )


def table(proofs: list[Proof]) -> Table:
    """The proofs as people read them."""
    made = Table(
        Column("model", no_wrap=True),
        Column("parameters", justify="right", no_wrap=True),
        Column("output", no_wrap=True),
        "vs rows",
        "vs ref.",
        Column("limit", no_wrap=True),
        caption="largest difference of a batch from its rows alone, and from the torch or numpy reference",
    )
    for proof in proofs:
        made.add_row(
            proof.model,
            "-" if proof.parameters is None else f"{proof.parameters:,}",
            ", ".join(_shape(shape) for shape in proof.outputs.values()),
            f"{proof.rows_error:.1e}",
            proof.why if proof.reference_error is None else f"{proof.reference_error:.1e}",
            f"{proof.tolerance:.0e}",
        )
    return made


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ",".join("B" if dim == -1 else str(dim) for dim in shape) + ")"


def main(argv: list[str] | None = None) -> int:
    """Prove what is exported; exit code 1 when a proof fails or nothing is exported, 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        prog="python -m export.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m export.verify ranker",
    )
    parser.add_argument("models", nargs="*", help="default: every model of the catalogue that is exported")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    arguments = parser.parse_args(argv)
    console = terminal()
    known = catalogue()
    if unknown := set(arguments.models) - known.keys():
        complain(console, f"unknown model {', '.join(sorted(unknown))}. Known: {', '.join(known)}.")
        return 2
    proofs, failures = [], []
    for model in arguments.models or known:
        try:
            folder = model_folder(model, arguments.repository)
            path = model_file(folder, read_config(config_file(folder, None)))
            if not path.is_file():
                failures.append(f"{path}: not exported yet. Run python -m export {model}.")
                continue
            with console.status(f"proving {model}"):
                proofs.append(prove(model, path, known[model], repository=arguments.repository))
        except (ProofError, RepositoryError, SignatureError) as error:
            failures.append(str(error))
    console.print(table(proofs))
    for failure in failures:
        complain(console, failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
