"""Load a model from many client processes, check every reply, and show the latency and where the time goes.

In a closed loop each client sends when its answer arrives. In an open loop requests are due at given times, and latency
counts from then. The program starts a server with the model's configuration, or with values of it replaced; --url loads
a server that already runs. Every run writes a record.
"""

import argparse
import sys
from pathlib import Path

from export import repository
from perf.records import size_mix
from perf.records.offered_load import PATTERNS
from triton_batching.options import number, path, whole_number
from triton_batching.terminal import guarded, program_parser, terminal

# The longest run and the longest wait for an answer: a week.
MOST_S = 604_800
MOST_COUNT = 2**31 - 1


def main(argv: list[str] | None = None) -> int:
    """Run the program: exit code 0 for a sound run, 1 for one with faults, 2 for a mistake, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.load", *(sys.argv[1:] if argv is None else argv))

    def action() -> int:
        # Imported late, because the processes that send the load import this file, too, and need nothing of it.
        from perf.load.command import measure

        return measure(arguments, command, terminal())

    return guarded(action, on_interrupt="stopped before anything was measured.")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.load",
        __doc__,
        example="simulated_accelerator --workers 128 --max-batch-size 32 --instances 3 --delay-ms 10",
    )
    parser.add_argument("model")
    load = parser.add_argument_group("the load")
    load.add_argument("--workers", type=int, default=8, help="client processes (default 8)")
    load.add_argument(
        "--in-flight", type=int, default=1, help="requests in flight of each process, in a closed loop (default 1)"
    )
    load.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    size_mix.add_option(load)
    load.add_argument("--pattern", choices=PATTERNS, default="closed", help="when requests are sent (default closed)")
    load.add_argument("--rate", type=float, default=0.0, help="requests per second of all processes, in an open loop")
    load.add_argument("--rate-to", type=float, default=0.0, help="requests per second at the end of a ramp")
    load.add_argument("--cv2", type=float, help="burstiness of gamma, 1 is Poisson (default 4)")
    load.add_argument("--trace", type=Path, help="file of arrival times, seconds, one a line")
    load.add_argument(
        "--in-flight-limit",
        type=int,
        help="requests in flight of all processes, in an open loop (default 256)",
    )
    load.add_argument(
        "--warm-up",
        type=number(least=0, most=MOST_S),
        default=2.0,
        metavar="S",
        help="seconds before the window (default 2)",
    )
    load.add_argument(
        "--duration", type=number(above=0, most=MOST_S), default=10.0, metavar="S", help="seconds measured (default 10)"
    )
    load.add_argument("--requests", type=whole_number(1, 10**9), help="send this many requests instead of --duration")
    load.add_argument(
        "--timeout",
        type=number(above=0, most=MOST_S),
        default=30.0,
        metavar="S",
        help="deadline of a request (default 30)",
    )
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--transport", choices=("auto", "shared_memory", "grpc", "http"), default="auto")
    target = parser.add_argument_group("the target", "a run ends as soon as it certainly fails, or passes after 30 s")
    target.add_argument(
        "--p99-ms",
        type=number(above=0, most=1000 * MOST_S),
        metavar="MS",
        help="99 %% of the requests must be answered within this time",
    )
    target.add_argument("--percent", type=float, help="another percentage for --p99-ms (default 99)")
    target.add_argument("--whole", action="store_true", help="measure for the whole --duration, whatever the verdict")
    served = parser.add_argument_group("the server")
    served.add_argument("--url", help="host:port (gRPC) of a running server (default: start one)")
    served.add_argument("--http-url", help="host:port of its HTTP endpoint, for --transport http")
    repository.add_option(served)
    served.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    served.add_argument(
        "--max-batch-size", type=whole_number(1, MOST_COUNT), help="replaces max_batch_size of the configuration"
    )
    served.add_argument(
        "--instances", type=whole_number(1, 1024), help="replaces the instance count of the configuration"
    )
    served.add_argument("--delay-ms", type=float, help="replaces the queue delay, and turns dynamic batching on")
    served.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help="replaces a parameter")
    served.add_argument(
        "--time-scale", type=float, default=1.0, help="factor on the times of a simulated model (default 1)"
    )
    served.add_argument(
        "--trace-rate",
        type=whole_number(0, MOST_COUNT),
        default=10,
        help="trace every n-th request, 0 none (default 10)",
    )
    parser.add_argument("--results", type=path, default=Path("build/load"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
