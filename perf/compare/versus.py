"""Measure two configurations of a model in turn, A B A' A B A', and say whether B is faster.

A and B are names of configurations (configs/NAME.pbtxt; `default` is config.pbtxt). Each has its own server, and one
gets load at a time. A' is A again: its difference from A is the noise floor. Every trial is a record, and a round with
all of its records is not measured again.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import digest
from export.repository import REPOSITORY, model_file, model_folder
from perf.compare.__main__ import show
from perf.compare.comparison import SLOWER, compare
from perf.load.deployment import Running
from perf.load.variant import read
from perf.measure.interleaved import Lane, interleaved, lanes
from perf.measure.service_time import recorded
from perf.measure.trial import Meter
from perf.records import round_record
from perf.records.round_record import TrialKey
from perf.records.runs import Runs, of_trial
from perf.records.study import AGAINST, NOISE, Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class VersusPlan:
    """What to measure, and the folder of its records."""

    model: str
    configs: Mapping[str, ModelConfig]
    model_sha256: Mapping[str, str]
    traffic: Traffic
    meter: Meter
    seconds: float
    rounds: int
    repository: Path
    folder: Path

    def slot(self, name: str, stage: str, number: int) -> TrialKey:
        """Return the key of one trial, which names its record."""
        return TrialKey(
            model=self.model,
            name=name,
            config=text_format.MessageToString(self.configs[name]),
            model_sha256=self.model_sha256[name],
            load=str(self.traffic),
            rows=self.traffic.rows,
            sla=self.meter.target,
            seconds=self.seconds,
            stage=stage,
            round=number,
            machine=Machine.this(),
            versions=versions(),
        )

    def slots(self, number: int) -> list[TrialKey]:
        """Return the keys of one round, in the order of its lanes."""
        first = next(iter(self.configs))
        return [*(self.slot(name, AGAINST, number) for name in self.configs), self.slot(first, NOISE, number)]

    @property
    def missing(self) -> list[int]:
        """Rounds that lack a record; they are measured as a whole, since the trials of a round belong together."""
        numbers = range(1, self.rounds + 1)
        return [number for number in numbers if not all(slot.path(self.folder).exists() for slot in self.slots(number))]


def main(argv: list[str] | None = None) -> int:
    """Return 0 if B is not slower than A, 1 if it surely is, 2 for a mistake in the call."""
    arguments = _parser().parse_args(argv)
    command = recorded("perf.compare.versus", argv)
    stopped = "stopped; every finished trial is on record, and the same command resumes."
    return guarded(
        lambda: versus(_plan(arguments, command), terminal(), together=not arguments.restart),
        on_interrupt=stopped,
    )


def versus(plan: VersusPlan, console: Console, *, together: bool = True) -> int:
    """Measure the missing rounds, print the comparison and return the exit code."""
    measure_missing(plan, console, together=together)
    sides: dict[str, list[Trial]] = {}
    for number in range(1, plan.rounds + 1):
        for slot in plan.slots(number):
            sides.setdefault(slot.side, []).append(round_record.read(slot.path(plan.folder))[1])
    rows = plan.traffic.rows
    a, b, noise = (
        Runs(
            title=f"{plan.model}, {name}",
            runs=tuple(of_trial(trial, plan.model, name, rows, path=plan.folder) for trial in trials),
        )
        for name, trials in sides.items()
    )
    lines = compare(a, b, noise.runs)
    show(lines, console, titles=(a.title, b.title))
    for name, trials in sides.items():
        passed = ", ".join({True: "pass", False: "fail", None: "cannot tell"}[trial.passed] for trial in trials)
        console.print(f"{plan.meter.target}, {name}: {passed}", markup=False)
    console.print(f"records: {plan.folder}", markup=False)
    return 1 if any(line.verdict == SLOWER for line in lines) else 0


def measure_missing(plan: VersusPlan, console: Console, *, together: bool) -> None:
    """Measure the rounds that lack a record."""
    numbers = plan.missing
    if not numbers:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=3 * len(numbers))

        def measure(server: Running, lane: Lane, number: int) -> Trial:
            bar.update(task, description=f"round {number}: {lane.stage} {lane.name}")
            trial = plan.meter.measure(
                server,
                lane.candidate,
                plan.traffic,
                stage=lane.stage,
                round=number,
                seconds=plan.seconds,
                seed=number,
            )
            round_record.write(plan.slot(lane.name, lane.stage, number), trial, plan.folder)
            bar.advance(task)
            return trial

        def progress(text: str) -> None:
            bar.update(task, description=text)

        context = lanes(
            plan.model,
            plan.configs,
            stage=AGAINST,
            repository=plan.repository,
            together=together,
            progress=progress,
        )
        with context as side_by_side:
            for _ in interleaved(side_by_side, numbers, measure):
                pass


def _plan(arguments: argparse.Namespace, command: Sequence[str]) -> VersusPlan:
    if arguments.a == arguments.b:
        raise Mistake(f"{arguments.a} against itself: A is measured twice anyway. Name two configurations.")
    if arguments.rounds < 1 or not 0 < arguments.seconds < math.inf:
        raise Mistake("--rounds must be at least 1, --seconds above 0.")
    configs = {
        name: read(arguments.model, None if name == DEFAULT else name, arguments.repository)
        for name in (arguments.a, arguments.b)
    }
    return VersusPlan(
        model=arguments.model,
        configs=configs,
        model_sha256={name: _model_sha256(arguments, config) for name, config in configs.items()},
        traffic=Traffic.parse(arguments.load, rows=arguments.rows),
        meter=Meter(target=LatencyTarget(latency_ms=arguments.p99_ms), command=tuple(command)),
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        repository=arguments.repository,
        folder=arguments.results,
    )


def _model_sha256(arguments: argparse.Namespace, config: ModelConfig) -> str:
    served = model_file(model_folder(arguments.model, arguments.repository), config)
    return digest(served) if served.is_file() else ""


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.compare.versus",
        __doc__,
        example="simulated_accelerator baseline dynamic --load closed:16 --p99-ms 200",
    )
    parser.add_argument("model")
    parser.add_argument("a", help="the old configuration: its name, or default")
    parser.add_argument("b", help="the new configuration: its name, or default")
    parser.add_argument("--load", required=True, help="closed:16, poisson:300, gamma:300:4, ramp:100:400 or trace:FILE")
    parser.add_argument("--rows", type=int, default=1, help="rows per request (default 1)")
    parser.add_argument("--p99-ms", type=float, required=True, metavar="MS", help="latency target for every trial")
    parser.add_argument("--rounds", type=int, default=5, help="trials of each (default 5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each trial (default 5)")
    parser.add_argument(
        "--restart", action="store_true", help="start a server for each trial, if three do not fit into the memory"
    )
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--results", type=Path, default=Path("build/versus"), help="folder of the records")
    return parser


if __name__ == "__main__":
    sys.exit(main())
