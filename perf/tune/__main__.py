"""Find the configuration of MODEL that meets a latency target at the highest throughput, and write configs/tuned.pbtxt.

The model is profiled (one short ramp for each count of instances), every candidate is simulated, and the best few are
measured on a real server. Rounds of the best beside the current configuration follow. All figures of it are from them,
and the file is written if it is surely better. After Ctrl-C the same command resumes.
"""

import argparse
import sys

from export import repository
from perf.measure import RESULTS
from perf.records import size_mix
from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser, terminal

OBJECTIVES = ("throughput", "goodput", "cost")
ROUNDS = (6, 12, 24)
LOADS = (
    "closed:16 (clients, the default), poisson:300 or constant:300 (requests per second), gamma:300:4 (and the "
    "burstiness cv2) or trace:FILE (arrival times in seconds, one a line)"
)
STOPPED = "stopped; every finished ramp and trial is on record, and the same command resumes from there."


def main(argv: list[str] | None = None) -> int:
    """Return 0 with a configuration, 1 if none meets the target, 2 for a mistake in the call, 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.tune", *(sys.argv[1:] if argv is None else argv))

    def action() -> int:
        # Imported late, because the processes that send load import this file, too, and need nothing of it.
        from perf.tune.command import run

        return run(arguments, command, terminal())

    return guarded(action, on_interrupt=STOPPED)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.tune", __doc__, example="ranker --p99-ms 50 --load closed:16")
    parser.add_argument("model", help="its name in the repository")
    parser.add_argument("--p99-ms", type=float, required=True, metavar="MS", help="latency of 99 requests in a hundred")
    parser.add_argument("--load", help=LOADS)
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="throughput",
        help="throughput within the target (the default; of an open load, the lowest latency), goodput: the highest "
        "Poisson rate within it, cost: the fewest instances that carry the load within it",
    )
    parser.add_argument("--config-name", help="the configuration to beat, a file of configs/ (default: config.pbtxt)")
    parser.add_argument("-b", "--rows", type=int, default=1, help="rows per request (default 1)")
    size_mix.add_option(parser)
    space = parser.add_argument_group("the space")
    space.add_argument("--max-batch-size", type=int, metavar="N", help="allow more rows than the model's variants do")
    space.add_argument("--instances", type=int, metavar="N", help="up to so many (default: one for each core)")
    space.add_argument("--preferred", action="store_true", help="also try preferred_batch_size")
    limits = parser.add_argument_group(
        "limits of what the server may use",
        "A configuration is not tried if its instances hold more after full batches, as triton-batching memory\n"
        "measures it, and not chosen if it used more. For example: --memory-mib 800 --cpu 1.5",
    )
    limits.add_argument("--cpu", type=float, metavar="CORES", help="cores that all its processes use")
    limits.add_argument("--memory-mib", type=float, metavar="MIB", help="memory of all its processes, on the host")
    limits.add_argument("--gpu-memory-mib", type=float, metavar="MIB", help="memory in use on the GPUs")
    cost = parser.add_argument_group("the cost")
    cost.add_argument("--points", type=int, default=13, help="of measurement at most, ramps included (default 13)")
    cost.add_argument("--seconds", type=float, default=90.0, help="of live load at most, ramps included (default 90)")
    cost.add_argument(
        "--rounds",
        type=int,
        choices=ROUNDS,
        help="of the last comparison at most, whatever they cost; it ends as soon as it is certain (default: 6, as far "
        "as points and seconds go)",
    )
    cost.add_argument("--margin", type=float, default=0.05, help="share of the target to keep free (default 0.05)")
    parser.add_argument("--force", action="store_true", help="replace a tuned.pbtxt changed by hand (a copy is kept)")
    parser.add_argument("--results", type=path, default=RESULTS, help="folder of the records")
    repository.add_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
