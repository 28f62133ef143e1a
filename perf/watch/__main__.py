"""Watch a running server: the current values of each model, and with --html a page of the last hour.

Request rates, rows per execution, batch sizes, queue and compute times and failures come from the server's statistics
(gRPC); CPU, GPU, memory, percentiles and the models' own metrics from its metrics endpoint. Ctrl-C ends the watch.
"""

import argparse
import sys

from triton_batching.options import number, path
from triton_batching.terminal import guarded, program_parser, terminal

# As `clients.endpoint.DEFAULT_URL`, which takes 150 ms to import.
DEFAULT_URL = "localhost:8001"
METRICS_URL = "localhost:8002"


def main(argv: list[str] | None = None) -> int:
    """Watch a server; exit code 2 if it does not answer at the start."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.watch.command import watch

        watch(arguments, terminal())

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.watch", __doc__, example="--html build/watch.html")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"host:port of its gRPC endpoint (default {DEFAULT_URL})")
    parser.add_argument("--metrics", default=METRICS_URL, help=f"host:port of its metrics (default {METRICS_URL})")
    parser.add_argument("--model", action="append", default=[], help="only this model; repeatable (default: all)")
    parser.add_argument(
        "--every",
        type=number(least=0.05, most=3600),
        default=1.0,
        metavar="S",
        help="seconds between readings (default 1)",
    )
    parser.add_argument(
        "--seconds", type=number(above=0, most=31_536_000), help="end after this many seconds (default: at Ctrl-C)"
    )
    parser.add_argument("--html", type=path, metavar="FILE", help="also keep this page up to date")
    return parser


if __name__ == "__main__":
    sys.exit(main())
