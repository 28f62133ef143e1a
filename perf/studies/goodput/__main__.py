"""The highest arrival rate at which 99 % of the requests are answered within a latency target, by way to batch.

No batching, greedy batching with two usual caps, and the policies aimd and deadline, under Poisson and under bursty
arrivals: in the simulation, and with --live on real servers that take turns. A request that is refused, not sent or
failed is not answered. What is measured already is not measured again; Ctrl-C loses nothing.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, track

from export.repository import REPOSITORY
from perf.load.variant import read
from perf.studies.goodput.contender import AIMD, DEADLINE, GREEDY, HALF, NONE, StandIn, contenders
from perf.studies.goodput.contest import Contest
from perf.studies.goodput.stream import ArrivalStream
from perf.studies.goodput.table import lines, table
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

MODEL = "simulated_accelerator"
ARRIVALS = ("poisson", "gamma:4")
UNFINISHED = 3


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all is measured that was asked for, 3 when --seconds ended it before, 2 for a mistake."""
    arguments = _parser().parse_args(argv)
    command = ("python", "-m", "perf.studies.goodput", *(sys.argv[1:] if argv is None else argv))
    stopped = "stopped: what was measured is kept; run it again to go on."
    return guarded(lambda: compare(arguments, command, terminal()), on_interrupt=stopped)


def compare(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Simulate, measure, print; the records are written point by point."""
    contest = _contest(arguments, command)
    total = len(contest.streams) * len(contest.asked)
    found = contest.searches()
    pairs = list(track(found, "simulating", total=total, console=console, transient=True))
    complete = True
    if arguments.live:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=1.0)
            complete = contest.measure(
                pairs,
                seconds=arguments.seconds,
                first=arguments.first,
                progress=lambda text, share: bar.update(task, description=text, completed=share),
            )
        pairs = list(contest.searches())
    device = contest.device
    console.print(
        f"\n{contest.model}: SLO {contest.slo_s * 1e3:g} ms, l(b) = {device.fixed_s * 1e3:g} + "
        f"{device.row_s * 1e3:g} b ms; requests/s of which 99 % are answered in time, intervals of 95 %",
        markup=False,
    )
    console.print(
        table(lines([search for search, _ in pairs]), {name: way.title for name, way in contest.ways.items()})
    )
    if not complete:
        console.print("not all is measured yet: run it again to go on.")
    return 0 if complete else UNFINISHED


def _contest(arguments: argparse.Namespace, command: tuple[str, ...]) -> Contest:
    if arguments.seeds < 1 or arguments.requests < 100 or arguments.time_scale <= 0 or arguments.max_batch_size < 1:
        raise Mistake("--seeds and --max-batch-size must be 1 or more, --requests 100 or more, --time-scale above 0.")
    config = read(arguments.model, arguments.config_name, arguments.repository)
    device = StandIn.of(config, time_scale=arguments.time_scale)
    slo_s = arguments.slo_times * device.seconds(1)
    ways = contenders(device, slo_s, arguments.max_batch_size)
    streams = [
        ArrivalStream.parse(arrivals, seed=seed, requests=arguments.requests, most_s=arguments.longest)
        for seed in range(arguments.seeds)
        for arrivals in arguments.arrivals or ARRIVALS
    ]
    return Contest(
        model=arguments.model,
        repository=arguments.repository,
        config=config,
        device=device,
        slo_s=slo_s,
        ways=ways,
        asked=[name for name in ways if not arguments.only or name in arguments.only],
        streams=streams,
        folder=arguments.results,
        command=command,
    )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m perf.studies.goodput", __doc__, example="--live --seeds 5")
    parser.add_argument("model", nargs="?", default=MODEL, help=f"one that only waits (default {MODEL})")
    names = (NONE, GREEDY, HALF, AIMD, DEADLINE)
    parser.add_argument("--only", action="append", choices=names, help="this way to batch; repeatable (default: all)")
    parser.add_argument("--arrivals", action="append", help=f"repeatable (default {' and '.join(ARRIVALS)})")
    parser.add_argument("--slo-times", type=float, default=2.5, help="target, in executions of one row (default 2.5)")
    parser.add_argument("--max-batch-size", type=int, default=64, help="most rows in one execution (default 64)")
    parser.add_argument("--seeds", type=int, default=5, help="arrivals are drawn so many times (default 5)")
    parser.add_argument("--requests", type=int, default=2000, help="of a point, x the root of cv2 (default 2000)")
    parser.add_argument("--longest", type=float, default=30.0, metavar="S", help="of a point; fewer count (default 30)")
    parser.add_argument("--live", action="store_true", help="measure on real servers too")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin no live point after so many (default 200)")
    parser.add_argument("--first", type=float, default=1.0, help="first rate over the simulated one (default 1)")
    parser.add_argument(
        "--time-scale", type=float, default=1.0, help="factor on all times, for slow clients (default 1)"
    )
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--config-name", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    parser.add_argument("--results", type=Path, default=Path("build/goodput"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
