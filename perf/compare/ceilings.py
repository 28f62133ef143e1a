"""Measure onnxruntime alone, without a server, on the files of two models in turn, and say whether B is faster.

A and B are models of the repository that take the same rows, such as a model and its FP16 variant. A round measures
both, in an order that the next round reverses, for 0.4 s at each batch size. Rows per second are compared as B / A
within the rounds. What a server adds is the same for both, so its ratio is nearer to 1.
"""

import argparse
import sys

from export import repository
from triton_batching.options import MOST_ROUNDS, MOST_THREADS, whole_number
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that has no ceiling."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.compare.ceilings_run import report

        report(arguments.a, arguments.b, arguments.rounds, arguments.threads, arguments.repository)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.compare.ceilings", __doc__, example="text_recognition text_recognition_fp16"
    )
    parser.add_argument("a", metavar="A", help="the old model")
    parser.add_argument("b", metavar="B", help="the new model")
    parser.add_argument(
        "--rounds", type=whole_number(2, MOST_ROUNDS), default=7, help="measurements of each (default 7)"
    )
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), help="intra-op threads (default: all cores)")
    repository.add_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
