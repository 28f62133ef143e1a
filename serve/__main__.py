"""Serve models of the repository on a real tritonserver until Ctrl-C; a server that dies is started again.

Arguments after `--` go to tritonserver unchanged.
"""

import argparse
import os
import sys
from pathlib import Path

from export import repository
from triton_batching.options import MOST_REPLICAS, whole_number
from triton_batching.terminal import guarded, program_parser

# A name of its own, because two servers may run at a time.
LOG = Path("build").resolve() / f"tritonserver-{os.getpid()}.log"


def main(argv: list[str] | None = None) -> int:
    """Exit code 130 after Ctrl-C, 0 after SIGTERM, 2 for a mistake in the call or the files, 1 for a failure."""
    ours, theirs = _split(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(ours)

    def action() -> None:
        from serve.command import run

        run(arguments, theirs, log=LOG)

    said = "stopped." if arguments.replicas else f"stopped. The log is {LOG}."
    return guarded(action, on_interrupt=said, service=True)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _seconds(text: str) -> float:
    """A positive number; raises `ArgumentTypeError`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m serve",
        __doc__,
        example="--model text_recognition --config-name dynamic -- --log-verbose=1",
    )
    parser.add_argument("--model", action="append", help="repeatable; default: every model that is exported")
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    repository.add_option(parser)
    parser.add_argument(
        "--replicas",
        type=whole_number(1, MOST_REPLICAS),
        metavar="N",
        help="this many servers, behind a front door that listens on the ports (see serve.cluster)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--http-port", type=int, default=8000, help="0 takes any free port")
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument(
        "--trace",
        metavar="URL",
        help="send spans of every 1000th request, and of each with a traceparent, to this collector (OTLP over HTTP), "
        "for example http://localhost:4318/v1/traces",
    )
    parser.add_argument(
        "--open-admin",
        action="store_true",
        help="let everybody who reaches the ports, web pages included, load models (which runs their code as you), "
        "register shared memory (which lets them read and write any of yours), and set traces and logs; by default "
        "only programs of yours on this machine may",
    )
    parser.add_argument(
        "--restart",
        choices=("always", "never"),
        default="always",
        help="what to do when the server dies by itself (default: always; gives up after 5 deaths in a minute)",
    )
    parser.add_argument(
        "--start-timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long the server may take until it is ready (default: 120)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
