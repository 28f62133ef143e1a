"""The ceiling of a model: the throughput of onnxruntime in this process, without a server, by batch size.

`python -m perf.measure.ceiling ranker` prints rows per second for the batch sizes 1, 2, 4 .. max_batch_size.
"""

import argparse
import sys

from export import repository
from triton_batching.options import MOST_THREADS, path, whole_number
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that has no ceiling."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.measure.ceiling_run import report

        report(arguments.model, arguments.threads, arguments.results, arguments.repository)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.measure.ceiling", __doc__, example="ranker --threads 1")
    parser.add_argument("model")
    repository.add_option(parser)
    parser.add_argument("--threads", type=whole_number(1, MOST_THREADS), help="intra-op threads (default: all cores)")
    parser.add_argument("--results", type=path, help="also write a record into this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
