"""Measure the service time of every batch size of a model on this machine, by a short ramp of concurrency.

`python -m perf.measure.service_time ranker --instances 1,2 --threads 1,2` runs a ramp of 20 to 60 s on a server of its
own for each pair of instances and threads, writes records, and prints tables. Existing records are used.
"""

import argparse
import sys
from collections.abc import Sequence

from export import repository
from perf.measure import RESULTS
from perf.records import size_mix
from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Measure and print: exit code 2 for a mistake, 1 for a failed server or measurement."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.measure.service_time_run import run

        run(arguments, recorded("perf.measure.service_time", argv))

    return guarded(action, on_interrupt=f"stopped; the records so far are in {arguments.results}.")


def recorded(program: str, argv: Sequence[str] | None) -> tuple[str, ...]:
    """The command line for a record: without --results."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--results" in words:
        del words[words.index("--results") : words.index("--results") + 2]
    return ("python", "-m", program, *(word for word in words if not word.startswith("--results=")))


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.measure.service_time", __doc__, example="ranker --instances 1,2 --threads 1,2"
    )
    parser.add_argument("model")
    repository.add_option(parser)
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--instances", default="1", metavar="1,2", help="instance counts (default 1)")
    parser.add_argument(
        "--threads", metavar="1,2", help="intra-op thread counts of onnxruntime (default: as configured)"
    )
    size_mix.add_option(parser)
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
