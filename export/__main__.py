"""Export models to ONNX, prove each file, and write it into the model repository.

`python -m export` exports every model that is not up to date. All models but `ranker` need torch.
"""

import argparse
import sys
from pathlib import Path

from export.graph.recipe import Recipe
from export.models.catalogue import Exporter, choose
from export.repository import REPOSITORY, served_file
from export.verify import Proof, prove, table
from triton_batching.terminal import Mistake, guarded, program_parser, terminal


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
        raise Mistake(f"{model}: exporting it needs {error.name}. Install it with the command: make export.") from error
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


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 2 for a user's mistake, 1 for a file that is not proved."""
    arguments = _parser().parse_args(argv)
    return guarded(
        lambda: export_all(
            choose(arguments.models, weights=arguments.weights, width=arguments.width),
            repository=arguments.repository,
            force=arguments.force,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m export", __doc__, example="text_recognition_512 --weights None-ResNet-None-CTC.pth"
    )
    parser.add_argument("models", nargs="*", help="models to export (default: all)")
    parser.add_argument("--weights", type=Path, help="a torch state dict with the public names (one model)")
    parser.add_argument("--width", type=int, help="channels of text_recognition: 64 (trained), 128, ... 512")
    parser.add_argument("--force", action="store_true", help="export models that are up to date too")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    return parser


if __name__ == "__main__":
    sys.exit(main())
