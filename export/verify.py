"""Prove exported models: the graph fits config.pbtxt, and a batch gives the answers of its rows and of the reference.

`python -m export.verify` proves every exported model; `python -m export` runs the same proof before it replaces a file.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnxruntime
from rich.table import Column, Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export import verify_ragged
from export.graph.axis_proof import Family, NotRowwise, batches, compared, names_of, run
from export.graph.error_measure import LOOSER, SINGLE, Difference, largest
from export.graph.onnx_graph import load
from export.graph.ragged_feed import is_ragged
from export.graph.recipe import Recipe
from export.graph.rounding import noise, roundings
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

ROWS = 8


class ProofError(Failure):
    """An exported file failed its proof."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result for one file.

    `rows` and `reference` are the largest differences of a batch from its rows alone, and from the reference.
    `reference` and `parameters` are None without a reference.
    """

    model: str
    outputs: Mapping[str, tuple[int, ...]]
    rows: Difference
    reference: Difference | None = None
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
    kind = verify_ragged.Mixes if is_ragged(config) else _Rows
    try:
        trial = kind(config, session, load(path), exporter)
        rows = trial.rows()
    except NotRowwise as error:
        raise ProofError(f"{path}: {error}. {kind.remedy}") from error
    reference = _reference(model, path, exporter) if with_reference else None
    difference = None if reference is None else trial.reference(reference)
    if difference and difference.exceeds:
        raise ProofError(
            f"{path}: differs from its reference by {difference}. The file does not match its recipe. Export it again: "
            f"make export ARGS='{model} --force'."
        )
    return Proof(
        model=model,
        outputs={name: tensor.shape for name, tensor in signature.outputs.items()},
        rows=rows,
        reference=difference,
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


class _Rows:
    """Rows of a model alone, in batches, and in its reference."""

    remedy = "So the first axis is not a batch axis. Export again with a dynamic axis."

    def __init__(
        self, config: ModelConfig, session: onnxruntime.InferenceSession, model: onnx.ModelProto, _: Exporter
    ) -> None:
        self._session, self._drawn = session, sample(config, rows=ROWS)
        self._family = Family.of(session, self._drawn, roundings(model), partial(noise, model))

    def rows(self) -> Difference:
        """The largest difference of a batch from its rows alone; raises `NotRowwise`."""
        return largest([compared(self._session, members) for members in batches(self._family, [], ROWS)])

    def reference(self, reference: Reference) -> Difference:
        """The largest difference of a batch from the reference."""
        expected = reference(self._drawn)
        answers = run(self._session, self._drawn)
        return self._family.measure.compare(
            answers, [expected[name] for name in names_of(self._session)], looser=LOOSER
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


def table(proofs: list[Proof]) -> Table:
    """A table of the proofs for the terminal."""
    grid = Table(
        Column("model", no_wrap=True),
        Column("parameters", justify="right", no_wrap=True),
        Column("output", no_wrap=True),
        f"vs rows (limit {SINGLE.tolerance:g})",
        f"vs ref. ({LOOSER * SINGLE.tolerance:g})",
        caption="largest difference of a batch from its rows alone, and from the torch or numpy reference, "
        "of what the same element varies by",
    )
    for proof in proofs:
        grid.add_row(
            proof.model,
            "-" if proof.parameters is None else f"{proof.parameters:,}",
            ", ".join(_shape(shape) for shape in proof.outputs.values()),
            f"{proof.rows.error:.1e}",
            "-" if proof.reference is None else f"{proof.reference.error:.1e}",
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
