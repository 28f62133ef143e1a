"""Measures two configurations of a model in turn, on a server each, and compares them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from google.protobuf import text_format
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.recipe import model_digest
from export.repository import model_file, model_folder
from perf.compare.command import rounds_needed, show
from perf.compare.comparison import QuantityComparison, compare
from perf.load.arrivals import read_trace
from perf.load.deployment import Running
from perf.load.variant import read
from perf.measure.interleaved import Lane, interleaved, lanes
from perf.measure.trial import Meter
from perf.records import file, round_record, size_mix
from perf.records.file import check_folder
from perf.records.round_record import TrialKey
from perf.records.runs import Runs, of_trial
from perf.records.study import AGAINST, NOISE, Trial
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.stats.looks import Looks
from perf.stats.verdict import SLOWER
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake

DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class VersusPlan:
    """What to measure, and the folder of its records.

    Until every verdict is certain, `rounds` are doubled, up to `most_rounds` (None: `rounds`). `seed` draws the order
    of the trials within the rounds.
    """

    model: str
    configs: Mapping[str, ModelConfig]
    model_sha256: Mapping[str, str]
    traffic: Traffic
    meter: Meter
    seconds: float
    rounds: int
    repository: Path
    folder: Path
    most_rounds: int | None = None
    seed: int = 0

    @property
    def digest(self) -> str:
        """That of A and B, in this order: only A has the A/A noise."""
        return file.digest(
            [(name, text_format.MessageToString(self.configs[name]), self.model_sha256[name]) for name in self.configs]
        )

    def slot(self, name: str, stage: str, number: int) -> TrialKey:
        """Return the key of one trial, which names its record."""
        return self._key(name, stage, number, self._machine)

    @cached_property
    def _machine(self) -> Machine:
        """This machine, as the rounds on record have it."""
        return round_record.machine(self._key(next(iter(self.configs)), AGAINST, 1, Machine.this()), self.folder)

    def _key(self, name: str, stage: str, number: int, machine: Machine) -> TrialKey:
        return TrialKey(
            model=self.model,
            name=name,
            config=text_format.MessageToString(self.configs[name]),
            model_sha256=self.model_sha256[name],
            load=str(self.traffic),
            load_sha256=self.traffic.sha256,
            rows=self.traffic.rows,
            sla=self.meter.target,
            seconds=self.seconds,
            stage=stage,
            round=number,
            machine=machine,
            versions=versions(),
            compared=self.digest,
        )

    def slots(self, number: int) -> list[TrialKey]:
        """Return the keys of one round, in the order of its lanes."""
        first = next(iter(self.configs))
        return [*(self.slot(name, AGAINST, number) for name in self.configs), self.slot(first, NOISE, number)]

    @property
    def missing(self) -> list[int]:
        """Rounds that lack a record; they are measured as a whole, since the trials of a round belong together."""
        return [number for number in range(1, self.rounds + 1) if not self.has(number)]

    def has(self, number: int) -> bool:
        """Whether a round has all of its records."""
        return all(slot.path(self.folder).exists() for slot in self.slots(number))

    @property
    def looks_at(self) -> list[int]:
        """The numbers of rounds after which it looks."""
        at, most = [self.rounds], self.most_rounds or self.rounds
        while at[-1] < most:
            at.append(min(2 * at[-1], most))
        return at


def versus(plan: VersusPlan, console: Console, *, together: bool = True) -> int:
    """Measure the missing rounds, print the comparison and return the exit code."""
    sides, lines = _until_certain(plan, console, together=together)
    old, new, _ = (f"{plan.model}, {name}" for name in sides)
    show(lines, console, titles=(old, new))
    if needed := rounds_needed(lines):
        console.print(
            f"To be certain, measure all rounds anew: --most-rounds {needed} and another folder (--results).",
            markup=False,
        )
    for name, trials in sides.items():
        passed = ", ".join({True: "pass", False: "fail", None: "cannot tell"}[trial.passed] for trial in trials)
        console.print(f"{plan.meter.target}, {name}: {passed}", markup=False)
    console.print(f"records: {plan.folder}", markup=False)
    return 1 if any(line.verdict.word == SLOWER for line in lines) else 0


def _until_certain(
    plan: VersusPlan, console: Console, *, together: bool
) -> tuple[dict[str, list[Trial]], list[QuantityComparison]]:
    """Measure and look as planned, until it is certain: the trials of each side, and what the last look saw."""
    looks = Looks(at=plan.looks_at)
    for at in looks.at:
        so_far = replace(plan, rounds=at)
        measure_missing(so_far, console, together=together)
        sides = _sides(so_far)
        lines = _compared(plan, sides, looks.level_at(at))
        if rounds_needed(lines) is None:
            break
    return sides, lines


def _sides(plan: VersusPlan) -> dict[str, list[Trial]]:
    """The trials of A, of B and of A measured again, by round."""
    sides: dict[str, list[Trial]] = {}
    for number in range(1, plan.rounds + 1):
        for slot in plan.slots(number):
            sides.setdefault(slot.side, []).append(round_record.read(slot.path(plan.folder))[1])
    return sides


def _compared(plan: VersusPlan, sides: Mapping[str, Sequence[Trial]], level: float) -> list[QuantityComparison]:
    a, b, noise = (
        Runs(
            title=f"{plan.model}, {name}",
            runs=tuple(of_trial(trial, plan.model, name, plan.traffic.rows, path=plan.folder) for trial in trials),
        )
        for name, trials in sides.items()
    )
    return compare(a, b, noise.runs, level=level)


def measure_missing(plan: VersusPlan, console: Console, *, together: bool) -> None:
    """Measure the rounds that lack a record, each as a whole; trials that they have on record are replaced."""
    numbers = plan.missing
    if not numbers:
        return
    check_folder(plan.folder)
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
                alone=not together,
            )
            round_record.write(plan.slot(lane.name, lane.stage, number), trial, plan.folder, order_seed=plan.seed)
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
            for _ in interleaved(side_by_side, numbers, measure, seed=plan.seed):
                pass


def planned(arguments: argparse.Namespace, command: Sequence[str]) -> VersusPlan:
    """What the command line describes; raises `Mistake`."""
    if arguments.a == arguments.b:
        raise Mistake(f"{arguments.a} against itself: A is measured twice anyway. Name two configurations.")
    configs = {
        name: read(arguments.model, None if name == DEFAULT else name, arguments.repository)
        for name in (arguments.a, arguments.b)
    }
    least = min(max(1, config.max_batch_size) for config in configs.values())
    if arguments.rows > least:
        raise Mistake(f"--rows {arguments.rows}: a request has 1 to {least} rows (max_batch_size). Give such a number.")
    if arguments.most_rounds is not None and arguments.most_rounds < arguments.rounds:
        raise Mistake(f"--most-rounds {arguments.most_rounds}: fewer than --rounds {arguments.rounds}.")
    mixes = [size_mix.asked(arguments, config) for config in configs.values()]
    traffic = Traffic.parse(arguments.load, rows=arguments.rows, mix=mixes[0])
    if traffic.trace is not None:
        read_trace(traffic.trace)
    target = LatencyTarget(latency_ms=arguments.p99_ms)
    return VersusPlan(
        model=arguments.model,
        configs=configs,
        model_sha256={name: _model_sha256(arguments, config) for name, config in configs.items()},
        traffic=traffic,
        meter=Meter(target=target, command=tuple(command)),
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        repository=arguments.repository,
        folder=arguments.results,
        most_rounds=arguments.most_rounds,
        seed=arguments.seed,
    )


def _model_sha256(arguments: argparse.Namespace, config: ModelConfig) -> str:
    return model_digest(model_file(model_folder(arguments.model, arguments.repository), config))
