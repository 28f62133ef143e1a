"""Start Prometheus and Alertmanager with the rules of docker/observe for running servers, until Ctrl-C.

Without options these are every cluster of this user with its replicas, whatever its ports, and a server at
localhost:8002. Both listen on this machine only. What they stored is removed at the end.
"""

import argparse
import sys

from triton_batching.options import path, whole_number
from triton_batching.terminal import guarded, program_parser

METRICS_URL = "localhost:8002"
port = whole_number(0, 65_535)


def main(argv: list[str] | None = None) -> int:
    """Observe until Ctrl-C; exit code 2 for a mistake in the call or a missing program, 1 if one of them died."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from serve.observe.command import run

        run(arguments)

    return guarded(action, service=True)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m serve.observe", __doc__, example="--metrics localhost:8002 --metrics localhost:8012"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--metrics",
        action="append",
        metavar="HOST:PORT",
        help=f"scrape these alone; repeatable (default: the clusters that run here, their replicas, and {METRICS_URL})",
    )
    source.add_argument(
        "--targets",
        type=path,
        metavar="FILE",
        help="the servers as Prometheus' file of targets (JSON), which is read again when it changes",
    )
    parser.add_argument("--port", type=port, default=0, help="of Prometheus (default: any free one)")
    parser.add_argument("--alerts-port", type=port, default=0, help="of Alertmanager (default: any free one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
