"""Metrics of every model's batches for Prometheus, beside any tritonserver: Triton's own and ours on one page.

`python -m serve` has them on its metrics port already. This is for a tritonserver that something else started.
"""

import argparse
import sys

from triton_batching.options import whole_number
from triton_batching.terminal import guarded, program_parser

URL, METRICS_URL, PORT = "localhost:8000", "localhost:8002", 9400


def main(argv: list[str] | None = None) -> int:
    """Serve metrics until Ctrl-C; exit code 2 for a mistake in the call."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from serve.exporter.command import run

        run(arguments)

    return guarded(action, service=True)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m serve.exporter", __doc__, example=f"--url {URL} --metrics {METRICS_URL} --port {PORT}"
    )
    parser.add_argument("--url", default=URL, help=f"host:port of the server's HTTP endpoint (default {URL})")
    parser.add_argument("--metrics", default=METRICS_URL, help=f"host:port of its metrics (default {METRICS_URL})")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument(
        "--port", type=whole_number(0, 65_535), default=PORT, help=f"0 takes any free port (default {PORT})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
