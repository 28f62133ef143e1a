"""Exports and proves models one by one: what `python -m export` does."""

from pathlib import Path

from export.graph.recipe import Recipe
from export.models.catalogue import Exporter
from export.repository import REPOSITORY, served_file
from export.verify import Proof, prove, table
from triton_batching.terminal import Mistake, terminal


def export(model: str, exporter: Exporter, *, repository: Path = REPOSITORY) -> Proof:
    """Write and prove one model; only a proven file replaces the old one."""
    path = served_file(model, repository)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft.onnx")
    try:
        exporter.write(exporter.recipe, exporter.weights, draft)
        proof = prove(model, draft, exporter, repository=repository)
        draft.replace(path)
    except ModuleNotFoundError as error:
        raise Mistake(f"{model}: exporting it needs {error.name}. Install it: make export ARGS={model}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return proof


def export_all(chosen: dict[str, Exporter], *, repository: Path = REPOSITORY, force: bool = False) -> None:
    """Export every model that is not up to date, and print the proofs."""
    console = terminal()
    proofs = []
    for model, exporter in chosen.items():
        path = served_file(model, repository)
        if exporter.recipe == Recipe.of(path) and not force:
            console.print(f"{model}: up to date", markup=False)
            continue
        with console.status(f"exporting and proving {model}"):
            proofs.append(export(model, exporter, repository=repository))
        console.print(f"{model}: {path.stat().st_size / 1e6:.1f} MB written", markup=False)
    if proofs:
        console.print(table(proofs))
