"""Estimate the memory of an ONNX model at each batch size without running it.

Prints, per batch size: the weights, the peak of the activations, the memory that onnxruntime's arena holds for them,
the lower bound of every allocator, and the memory of an offset plan. "would save" is the share of the arena's memory
that an offset plan saves. A second table names the tensors that are live at the peak. The defaults are those of
onnxruntime and Triton.
"""

import argparse
import sys
from collections.abc import Sequence

from export import repository
from triton_batching.options import MOST_THREADS, path, whole_number
from triton_batching.terminal import guarded, program_parser

LEVELS = ("all", "basic", "disabled", "extended")
STRATEGIES = ("power", "same")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit code 2 for a user's mistake, 1 if shapes depend on values of the input."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.memory.command import run

        run(arguments)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.memory", __doc__, example="resnet50 --batch 1..32 --html build/memory.html")
    parser.add_argument("model", metavar="MODEL", help="a model of the repository, or an .onnx file")
    repository.add_option(parser)
    parser.add_argument("--batch", default="1..32", metavar="SIZES", help="1..32 (powers of two) or 1,3,24")
    parser.add_argument("--dims", default="", metavar="NAME=SIZE,...", help="the inputs' other dynamic dimensions")
    parser.add_argument("--level", choices=LEVELS, default="all", help="onnxruntime's graph optimisation")
    parser.add_argument(
        "--pattern", action=argparse.BooleanOptionalAction, default=True, help="onnxruntime's memory pattern"
    )
    parser.add_argument(
        "--threads", type=whole_number(1, MOST_THREADS), default=1, metavar="N", help="size of the intra-op pool"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="json has bytes (default: table)")
    parser.add_argument(
        "--html", type=path, metavar="FILE", help="also write a page: maps of the largest batch, node by node"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default="power", help="how the arena grows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
