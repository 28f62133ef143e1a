"""The highest arrival rate at which 99 % of the requests are answered within a latency target, by batching policy.

It compares no batching, greedy batching with two usual caps, and the policies aimd and deadline, under Poisson and
under bursty arrivals: in the simulation, and with --live on real servers that run at the same time. A request that is
refused, not sent or failed is not answered. Recorded trials are not measured again; Ctrl-C loses nothing.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track

from export.repository import REPOSITORY
from perf.load.variant import read
from perf.stats.looks import anew
from perf.studies.experiment import command_line, progress_bar
from perf.studies.goodput.comparison import GoodputComparison
from perf.studies.goodput.contender import (
    AIMD,
    DEADLINE,
    GREEDY,
    HALF,
    KINDS,
    NONE,
    ArrivalStream,
    SimulatedDevice,
    contenders,
)
from perf.studies.goodput.table import lines, more_seeds, table
from triton_batching.options import MOST_SEED, whole_number
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

MODEL = "simulated_accelerator"
# The target, in executions of one row; the most rows of an execution; the longest trial in seconds.
SLO_TIMES, MOST_ROWS, LONGEST_S = 2.5, 64, 30.0
UNFINISHED = 3


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 3 if --seconds ended it before the last trial, 2 for a mistake."""
    arguments = _parser().parse_args(argv)
    stopped = "stopped; finished trials are recorded. Run the same command to continue."
    return guarded(lambda: compare(arguments, command_line("goodput", argv), terminal()), on_interrupt=stopped)


def compare(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Simulate, measure, print; every trial is recorded before the next."""
    comparison = _comparison(arguments, command)
    total = len(comparison.streams) * len(comparison.names)
    searches = list(track(comparison.searches(), "simulating", total=total, console=console, transient=True))
    complete = True
    if arguments.live:
        with progress_bar() as progress:
            complete = comparison.measure(searches, seconds=arguments.seconds, first=arguments.first, progress=progress)
        searches = list(comparison.searches())
    device = comparison.device
    console.print(
        f"\n{comparison.model}: SLO {comparison.slo_s * 1e3:g} ms, l(b) = {device.fixed_s * 1e3:g} + "
        f"{device.row_s * 1e3:g} b ms; requests/s of which 99 % are answered in time, intervals of 95 %",
        markup=False,
    )
    titles = {name: contender.title for name, contender in comparison.contenders.items()}
    rows = lines([search for search, _ in searches])
    console.print(table(rows, titles))
    if more := more_seeds(rows):
        fresh = f"--first-seed {arguments.first_seed + arguments.seeds} --seeds {arguments.seeds + more}"
        console.print(f"A seed is a round. To be certain: {fresh}. {anew('seeds')}", markup=False, highlight=False)
    if not complete:
        console.print("Some trials are missing. Run the same command to continue.")
    return 0 if complete else UNFINISHED


def _comparison(arguments: argparse.Namespace, command: tuple[str, ...]) -> GoodputComparison:
    if arguments.seeds < 1 or arguments.requests < 100 or arguments.time_scale <= 0:
        raise Mistake("--seeds must be 1 or more, --requests 100 or more, --time-scale above 0.")
    config = read(MODEL, None, REPOSITORY)
    device = SimulatedDevice.of(config, time_scale=arguments.time_scale)
    slo_s = SLO_TIMES * device.seconds(1)
    by_name = contenders(device, slo_s, MOST_ROWS)
    return GoodputComparison(
        model=MODEL,
        repository=REPOSITORY,
        config=config,
        device=device,
        slo_s=slo_s,
        contenders=by_name,
        names=[name for name in by_name if not arguments.only or name in arguments.only],
        streams=[
            ArrivalStream.of(kind, seed=seed, requests=arguments.requests, most_s=LONGEST_S)
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            for kind in KINDS
        ],
        folder=arguments.results,
        command=command,
    )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.studies.goodput", __doc__, example="--live --seeds 5")
    names = (NONE, GREEDY, HALF, AIMD, DEADLINE)
    parser.add_argument(
        "--only", action="append", choices=names, help="compare this contender; repeatable (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds for the arrivals (default 5)")
    parser.add_argument(
        "--first-seed", type=whole_number(0, MOST_SEED), default=0, help="measure from this seed on (default 0)"
    )
    parser.add_argument("--requests", type=int, default=2000, help="of a trial, x the root of cv2 (default 2000)")
    parser.add_argument("--live", action="store_true", help="measure on real servers too")
    parser.add_argument(
        "--seconds", type=float, default=200.0, help="begin no live trial after this time (default 200)"
    )
    parser.add_argument("--first", type=float, default=1.0, help="first rate over the simulated goodput (default 1)")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="factor on all times, for slow clients (default 1)"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("perf/results/local/goodput"), help="folder of the records"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
