"""Simulate days of a deployment that scales: replica hours against the share of requests in time.

The rates come from a CSV file (time_s,deployment,rate_per_s) or are generated (--day diurnal). What one replica does at
each load is simulated from the service times on record (python -m perf.measure.service_time MODEL).
"""

import argparse
import sys
from pathlib import Path

from perf.measure import RESULTS
from triton_batching.options import MOST_REPLICAS, MOST_SEED, number, path, whole_number
from triton_batching.terminal import guarded, program_parser

OUT = Path("perf/results/local/scale")


def main(argv: list[str] | None = None) -> int:
    """Simulate, print and write; exit code 2 for a user's mistake."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.scale", *(sys.argv[1:] if argv is None else argv))

    def action() -> None:
        from perf.scale.command import run

        run(arguments, command)

    return guarded(action)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.scale", __doc__, example="PLAN.toml --day diurnal --peak 4000")
    parser.add_argument("plan", type=path, help="the cluster's plan (TOML), described in serve/cluster/README.md")
    parser.add_argument("--deployment", help="one of the plan (default: each that the trace names, or the only one)")
    days = parser.add_argument_group("the day")
    days.add_argument("--trace", type=path, metavar="DAY.csv", help="rates over time: time_s,deployment,rate_per_s")
    days.add_argument("--day", choices=("diurnal",), help="generate days: a night, a peak, bursts")
    days.add_argument("--peak", type=number(above=0, most=1e7), help="requests per second at the peak of --day")
    days.add_argument("--days", type=whole_number(1, 20), default=1, help="how many of --day (default 1)")
    days.add_argument("--seed", type=whole_number(0, MOST_SEED - 20), default=0, help="of --day, failures and starts")
    days.add_argument(
        "--step-s", type=number(least=0.1, most=60), default=1.0, help="step of the simulation (default 1)"
    )
    world = parser.add_argument_group("replicas")
    world.add_argument("--start-s", type=number(least=0, most=3600), default=30.0, help="mean start time (default 30)")
    world.add_argument(
        "--start-cv", type=number(least=0, most=3), default=0.3, help="its spread: sd / mean (default 0.3)"
    )
    world.add_argument(
        "--mtbf-h",
        type=number(least=0, most=1e6),
        default=168.0,
        help="hours between failures of one replica, 0 for none (default 168)",
    )
    world.add_argument(
        "--decide-s",
        type=number(least=1, most=600),
        default=15.0,
        help="seconds between decisions (default 15, as Kubernetes)",
    )
    world.add_argument("--min", type=whole_number(1, MOST_REPLICAS), help="fewest replicas (default: the plan's, or 1)")
    world.add_argument(
        "--max", type=whole_number(1, MOST_REPLICAS), help=f"most replicas (default: the plan's, or {MOST_REPLICAS})"
    )
    world.add_argument(
        "--service-time",
        type=path,
        metavar="FILE",
        help="record of perf.measure.service_time (default: the largest ramp in --records)",
    )
    world.add_argument("--records", type=path, default=RESULTS, help=f"folder of these records (default {RESULTS})")
    world.add_argument(
        "--capacity",
        type=number(above=0, most=1e7),
        help="requests per second of one replica, if you measured it (default: simulated)",
    )
    parser.add_argument(
        "--share", type=number(above=0, most=1), default=0.99, help="goal: share of requests in time (default 0.99)"
    )
    out = parser.add_argument_group("what to write")
    out.add_argument("--out", type=path, default=OUT, help=f"folder of the record (default {OUT})")
    out.add_argument("--hpa", type=path, metavar="FILE", help="a HorizontalPodAutoscaler with the same rule")
    out.add_argument("--keda", type=path, metavar="FILE", help="a KEDA ScaledObject with the same rule")
    out.add_argument(
        "--prometheus", default="http://prometheus-operated.monitoring:9090", help="its address, for --keda"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
