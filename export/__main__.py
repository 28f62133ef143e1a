"""Export models to ONNX, prove each file, and write it into the model repository.

`python -m export` exports every model that is not up to date. All models but `ranker` need torch.
"""

import argparse
import sys
from pathlib import Path

from export import repository
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 2 for a user's mistake, 1 for a file that is not proved."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from export.command import export_all
        from export.models.catalogue import choose

        chosen = choose(arguments.models, weights=arguments.weights, width=arguments.width)
        export_all(chosen, repository=arguments.repository, force=arguments.force)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m export", __doc__, example="text_recognition_512 --weights None-ResNet-None-CTC.pth"
    )
    parser.add_argument("models", nargs="*", help="models to export (default: all)")
    parser.add_argument("--weights", type=Path, help="a torch state dict with the public names (one model)")
    parser.add_argument("--width", type=int, help="channels of text_recognition: 64 (trained), 128, ... 512")
    parser.add_argument("--force", action="store_true", help="export models that are up to date too")
    repository.add_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
