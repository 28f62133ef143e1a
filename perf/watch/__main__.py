"""Watch running servers: the current values of each model, and with --serve a page of up to 24 hours.

Request rates, rows per execution, batch sizes, queue and compute times and failures come from the servers' statistics
(gRPC); CPU, GPU, memory, percentiles and the models' own metrics from their metrics endpoints. Ctrl-C ends the watch.
"""

import argparse
import sys

from triton_batching.options import number
from triton_batching.terminal import guarded, program_parser, terminal

# Triton's own port for gRPC.
DEFAULT_URL = "localhost:8001"
METRICS_URL = "localhost:8002"
PAGE = ("127.0.0.1", 8003)


def main(argv: list[str] | None = None) -> int:
    """Watch servers; exit code 2 if none answers at the start."""
    arguments = _parser().parse_args(argv)
    arguments.url, arguments.metrics = arguments.url or [DEFAULT_URL], arguments.metrics or [METRICS_URL]

    def action() -> None:
        from perf.watch.command import watch

        watch(arguments, terminal())

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.watch", __doc__, example="--serve")
    parser.add_argument(
        "--url",
        action="append",
        help=f"host:port of a server's gRPC endpoint; repeatable (default {DEFAULT_URL}). The door of a cluster on "
        "this machine stands for all its replicas",
    )
    parser.add_argument(
        "--metrics",
        action="append",
        help=f"host:port of its metrics (default {METRICS_URL}); one for each --url, in the same order",
    )
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
    parser.add_argument(
        "--serve",
        type=_place,
        nargs="?",
        const=PAGE,
        metavar="[HOST:]PORT",
        help=f"also serve a live page (default http://{PAGE[0]}:{PAGE[1]}/; port 0 is any free one). On another "
        "address than loopback, readers need a token: that of TRITON_BATCHING_WATCH_TOKEN, else a new one, which is in "
        "the printed address",
    )
    return parser


def _place(text: str) -> tuple[str, int]:
    """A host and a port; without a host this machine alone."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or (":" in text and not host):
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65,535, nor an address and a port")
    return host.removeprefix("[").removesuffix("]") or PAGE[0], int(port)


if __name__ == "__main__":
    sys.exit(main())
