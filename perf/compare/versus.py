"""Measure two configurations of a model in turn, and say whether B is faster, slower or the same within 3%.

A and B are names of configurations (configs/NAME.pbtxt; `default` is config.pbtxt). Each has its own server, and one
gets load at a time. A round measures A, B and A again, in an order drawn from `--seed` that the next round reverses. A
again, over A, is the A/A noise. Every trial is a record, and a round with all of its records is not measured again.
With `--most-rounds` all looks together have an error of 5 %.
"""

import argparse
import sys
from pathlib import Path

from export import repository
from perf.measure.service_time import recorded
from perf.records import size_mix
from triton_batching.options import DAY_S, MOST_ROUNDS, MOST_ROWS, MOST_SEED, number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

STOPPED = "stopped; the same command measures the rounds that lack a trial again, each as a whole."


def main(argv: list[str] | None = None) -> int:
    """Return 0 if B is not slower than A, 1 if it surely is, 2 for a mistake in the call."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from perf.compare.versus_run import planned, versus

        plan = planned(arguments, recorded("perf.compare.versus", argv))
        return versus(plan, terminal(), together=not arguments.restart)

    return guarded(action, on_interrupt=STOPPED)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.compare.versus",
        __doc__,
        example="simulated_accelerator baseline dynamic --load closed:16 --p99-ms 200",
    )
    parser.add_argument("model")
    parser.add_argument("a", help="the old configuration: its name, or default")
    parser.add_argument("b", help="the new configuration: its name, or default")
    parser.add_argument("--load", required=True, help="closed:16, poisson:300, gamma:300:4, ramp:100:400 or trace:FILE")
    parser.add_argument("--rows", type=whole_number(1, MOST_ROWS), default=1, help="rows per request (default 1)")
    size_mix.add_option(parser)
    parser.add_argument("--p99-ms", type=float, required=True, metavar="MS", help="latency target for every trial")
    parser.add_argument("--rounds", type=whole_number(1, MOST_ROUNDS), default=5, help="trials of each (default 5)")
    parser.add_argument(
        "--most-rounds",
        type=whole_number(1, MOST_ROUNDS),
        metavar="N",
        help="until it is certain, double the rounds, up to N (default: one look, after --rounds)",
    )
    parser.add_argument("--seed", type=whole_number(0, MOST_SEED), default=0, help="of the order (default 0)")
    parser.add_argument(
        "--seconds", type=number(above=0, most=DAY_S), default=5.0, help="length of each trial (default 5)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="start a server for each trial, if three do not fit into the memory"
    )
    repository.add_option(parser)
    parser.add_argument("--results", type=path, default=Path("build/versus"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
