"""Deploy a configuration to a running cluster, to a canary first; exit code 1 if the canary is worse.

The canary is one replica with the new configuration. A control, one new replica with the old one, gets the same share
of the requests. If the canary is surely slower, fails surely more often, or got too few requests to tell, both go, and
nothing has changed. Otherwise the other replicas are replaced one by one. Ctrl-C ends the canary.
"""

import argparse
import math
import signal
import sys
from pathlib import Path

from triton_batching.options import DAY_S, number, path
from triton_batching.terminal import guarded, program_parser

RESULTS = Path("perf/results/local/deploy")
# Canary and control get this share each, and the other replicas the rest.
MOST_SHARE = 0.45
MOST_TOLERANCE = 9.0
# The verdict needs five windows of two seconds.
LEAST_S = 10.0


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 if the configuration is deployed, 1 if not, 2 for a mistake."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from perf.deploy.command import run

        return run(arguments)

    return guarded(
        action,
        on_interrupt="stopped. A canary goes; an update that has begun goes on.",
        interrupts=(signal.SIGINT, signal.SIGTERM),
    )


def share(text: str) -> float:
    """A share of the requests: 10% or 0.1."""
    if 0 < (value := _number(text)) <= MOST_SHARE:
        return value
    raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and at most {MOST_SHARE:.0%}, for example 10%")


def tolerance(text: str) -> float:
    """How much slower a canary may be: 5% or 0.05, up to ten times as slow."""
    if 0 <= (value := _number(text)) <= MOST_TOLERANCE:
        return value
    raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to {MOST_TOLERANCE:.0%}, for example 5%")


def _number(text: str) -> float:
    """The number before a %, as a share; not a number without one."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.deploy", __doc__, example="accelerator --config-name dynamic_2_instances --canary 10%"
    )
    parser.add_argument("deployment", help="a deployment of the cluster, or a model")
    parser.add_argument(
        "--plan",
        type=path,
        metavar="PLAN.toml",
        help="the cluster's plan, or serve-PID (default: the only cluster that runs)",
    )
    parser.add_argument("--config-name", metavar="NAME", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument(
        "--canary",
        type=share,
        default=0.1,
        metavar="SHARE",
        help="of the requests, for each of the two (default: 10%%)",
    )
    parser.add_argument(
        "--seconds",
        type=number(least=LEAST_S, most=DAY_S),
        default=60.0,
        help="how long both are compared (default: 60)",
    )
    parser.add_argument(
        "--tolerance",
        type=tolerance,
        default=0.05,
        metavar="SHARE",
        help="how much slower the canary may be (default: 5%%)",
    )
    parser.add_argument("--results", type=path, default=RESULTS, help=f"folder of the record (default: {RESULTS})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
