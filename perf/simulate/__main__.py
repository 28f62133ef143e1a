"""What a configuration of a model would do under a load, simulated with the service times of this machine.

`python -m perf.simulate ranker --load poisson:300 --p99-ms 50 --delay-ms 0,2,5` prints one line for each configuration;
service times that are not on record yet are measured first, 20 to 60 s for each count of instances and threads. Below
each figure is the interval that holds nine of ten measurements of it.
"""

import argparse
import sys

from export import repository
from perf.measure import RESULTS
from perf.measure.service_time import recorded
from perf.records import size_mix
from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Predict and print; returns 2 for a mistake in the call, 1 for a failed server or measurement."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        from perf.simulate.command import run

        run(arguments, recorded("perf.simulate", argv))

    return guarded(action, on_interrupt=f"stopped; finished ramps are on record in {arguments.results}.")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.simulate", __doc__, example="ranker --load closed:16 --p99-ms 50")
    parser.add_argument("model", help="its name in the repository")
    repository.add_option(parser)
    parser.add_argument("--config-name", help="a file of configs/ (default: config.pbtxt)")
    parser.add_argument(
        "--load",
        required=True,
        metavar="LOAD",
        help="closed:16 (clients), poisson:300 (requests per second), gamma:300:4 (bursty), trace:FILE",
    )
    parser.add_argument("--p99-ms", type=float, default=50.0, help="latency target (default 50)")
    parser.add_argument("--max-batch-size", metavar="8,16", help="rows in an execution (default: as configured)")
    parser.add_argument("--delay-ms", metavar="0,2", help="max_queue_delay (default: as configured)")
    parser.add_argument("--instances", metavar="1,2", help="instances (default: as configured)")
    parser.add_argument("--threads", metavar="1,2", help="intra-op threads of onnxruntime (default: as configured)")
    parser.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    size_mix.add_option(parser)
    parser.add_argument(
        "--drift",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="how much the machine's speed differs from one moment to another, if more than its record shows",
    )
    parser.add_argument("--requests", type=int, default=20_000, help="requests to simulate (default 20000)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="the interval is for so long a measurement (default 10)"
    )
    parser.add_argument(
        "--way-us",
        type=float,
        metavar="US",
        help="your client's latency of a lone request less queue and computing (default: perf_analyzer's, measured)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
