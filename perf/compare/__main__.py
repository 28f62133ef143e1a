"""Are two sets of measurements different? Ratios with intervals: faster, slower, the same within 3%, or cannot tell.

A and B are files or folders of records (of perf.measure.sweep or perf.load); PATH:NAME takes one configuration of many.
A study of perf.tune stands for its choice; one study alone has its choice over its default, as perf.tune prints it. The
exit code is 1 if B is surely slower than A and by more than the threshold, so that a pipeline stops there; sure for all
loads and quantities together, at 95 %. It is 0 for a study that kept its default or says to use its choice all the
same. One run of each cannot tell: measure three or more, in turn.
"""

import argparse
import sys
from pathlib import Path

from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser, terminal


def main(argv: list[str] | None = None) -> int:
    """Return 0 without a regression, 1 with one, 2 for a mistake in the call or a record."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from perf.compare.command import run

        return run(arguments, terminal())

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.compare", __doc__, example="perf/results/demo:baseline perf/results/demo:dynamic"
    )
    parser.add_argument("a", help="the old records: PATH, PATH:CONFIGURATION, or a study")
    parser.add_argument("b", nargs="?", help="the new records; left out if A is a study whose choice is meant")
    parser.add_argument("--noise", metavar="PATH", help="records of A measured again, in turn with A: the A/A noise")
    parser.add_argument("--threshold", default="5%", help="a loss above this is a regression (default 5%%)")
    parser.add_argument(
        "--out", type=path, default=Path("build/compare.json"), help="file for the result (default build/compare.json)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
