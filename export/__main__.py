"""Export models to ONNX, prove each file, and lay it into the model repository.

`python -m export` exports every model that is not up to date; torch is needed for all but `ranker`.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from export.catalogue import Exporter, catalogue, with_weights
from export.recipe import Recipe
from export.repository import REPOSITORY, RepositoryError, config_file, model_file, model_folder, read_config
from export.signature import SignatureError
from export.terminal import complain, terminal
from export.verify import Proof, ProofError, prove, table


def up_to_date(path: Path, recipe: Recipe) -> bool:
    """Whether the file at `path` was written by this very recipe."""
    return recipe.same_content(Recipe.of(path))


def export(model: str, exporter: Exporter, *, repository: Path = REPOSITORY) -> Proof:
    """Write and prove one model; the old file is replaced only by a proven one."""
    folder = model_folder(model, repository)
    path = model_file(folder, read_config(config_file(folder, None)))
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft.onnx")
    try:
        exporter.write(exporter.recipe, draft)
        proof = prove(model, draft, exporter, repository=repository)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return proof


def main(argv: list[str] | None = None) -> int:
    """Export what is asked for; exit code 2 for a user's mistake, 1 for a file that could not be proved."""
    arguments = _parser().parse_args(argv)
    console = terminal()
    try:
        chosen = _choose(arguments)
    except ValueError as error:
        complain(console, error)
        return 2
    proofs = []
    for model, exporter in chosen.items():
        try:
            folder = model_folder(model, arguments.repository)
            path = model_file(folder, read_config(config_file(folder, None)))
            if up_to_date(path, exporter.recipe) and not arguments.force:
                console.print(f"{model}: up to date", markup=False)
                continue
            with console.status(f"exporting and proving {model}"):
                proofs.append(export(model, exporter, repository=arguments.repository))
            console.print(f"{model}: {path.stat().st_size / 1e6:.1f} MB written", markup=False)
        except ModuleNotFoundError as error:
            complain(console, f"{model}: exporting it needs {error.name}. Install it: make export.")
            return 2
        except (ValueError, RepositoryError) as error:
            complain(console, f"{model}: {error}")
            return 2
        except (ProofError, SignatureError) as error:
            complain(console, f"{model}: {error}")
            return 2 if "config.pbtxt" in str(error) else 1
    if proofs:
        console.print(table(proofs))
    return 0


def _choose(arguments: argparse.Namespace) -> dict[str, Exporter]:
    known = catalogue()
    names = arguments.models or list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown model '{name}'. Known: {', '.join(known)}.")
    chosen = {name: known[name] for name in names}
    if arguments.weights is None and arguments.width is None:
        return chosen
    if len(arguments.models) != 1:
        raise ValueError("--weights and --width belong to one model: name it, for example text_recognition_512.")
    name, exporter = next(iter(chosen.items()))
    recipe = exporter.recipe
    if arguments.width is not None:
        if not exporter.takes_width:
            raise ValueError(f"'{name}' has no --width. Only text_recognition is made in several.")
        recipe = replace(recipe, width=arguments.width, weights=None, weights_sha256=None)
    if arguments.weights is not None:
        if not exporter.takes_weights:
            raise ValueError(f"'{name}' takes no --weights: it is drawn from its seed.")
        recipe = with_weights(recipe, arguments.weights)
    return {name: replace(exporter, recipe=recipe)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m export text_recognition_512 --weights None-ResNet-None-CTC.pth",
    )
    parser.add_argument("models", nargs="*", help="default: all of them")
    parser.add_argument("--weights", type=Path, help="a torch state dict with the public names (one model)")
    parser.add_argument("--width", type=int, help="channels of text_recognition: 64 (trained), 128, ... 512")
    parser.add_argument("--force", action="store_true", help="export again even when up to date")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    return parser


if __name__ == "__main__":
    sys.exit(main())
