"""The tuner on models that are made in the run: its choice against the best of a grid, its cost, and its printed gain.

`python -m perf.studies.grid.blind` draws a seed and makes three models. For each it measures a grid under a drawn
number of clients, takes a drawn percentile of the grid's p99s as the latency target, runs `perf.tune` as a user would,
and measures the choice, the grid's best and the current configuration again in turn. A model takes about ten minutes.

The gates for each model: the choice surely reaches 97 % of the grid's best and does not miss the target; the search
took at most 13 points, 90 s of load, and 100 s of time after the ramps; it chose a configuration, as the grid has one;
and the printed interval of its gain holds the gain that is measured again.
"""

import argparse
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from rich.console import Console

from perf.load.variant import read as read_variant
from perf.records import file
from perf.records.last_comparison import THROUGHPUT, last_comparison
from perf.records.study import Study
from perf.records.traffic import Traffic
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.latency_target import LatencyTarget
from perf.studies.experiment import Origin, command_line, now, origin, progress_line
from perf.studies.grid import judgement
from perf.studies.grid.__main__ import NO_TARGET, candidates, measure
from perf.studies.grid.judgement import BEST, CURRENT, TUNED, GridJudgement
from perf.studies.grid.record import Grid
from perf.studies.prediction import blind_models
from perf.tune.live import LiveBench
from perf.tune.tuning import Question
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/tune/blind")
CLIENTS = (8, 12, 16, 24, 32)
# Batch sizes of the grid as shares of the model's largest; delays and instances.
SIZES, DELAYS_US, INSTANCES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1), (0, 2500, 10_000), (1, 2)
TRIAL_S = 2.5
# The target is between these percentiles of the p99s of the grid, so that some configurations meet it and some do not.
PERCENTILES = (35, 80)
# The tuner found no configuration: an answer of perf.tune, where every other exit code but 0 is a failure.
NO_CHOICE = 1


@dataclass(frozen=True, kw_only=True)
class BlindTuning(Origin):
    """One model of a seed, its tuning, and the judgement on it.

    `feasible` counts the configurations of the grid, of `measured`, that met the target once. `judged` is None if the
    tuner chose nothing. `printed` is the interval of the gain in throughput that the tuner printed, and `again` the one
    measured afterwards; both are None if it kept the current configuration.
    """

    KIND: ClassVar[str] = "blind tuning"
    FORMAT: ClassVar[int] = 1
    model: str
    seed: int
    load: str
    p99_ms: float
    feasible: int
    measured: int
    judged: GridJudgement | None
    printed: Interval | None
    again: Interval | None

    @property
    def held(self) -> bool:
        """Whether the printed interval holds the gain that was measured again."""
        return self.printed is None or (
            self.again is not None and self.printed.low <= self.again.value <= self.printed.high
        )

    @property
    def passed(self) -> bool:
        """Whether all gates are held."""
        return self.judged is not None and self.judged.passed and self.held


@dataclass(frozen=True, kw_only=True)
class BlindQuestion:
    """One model of a seed in `repository`, and the folder of its records."""

    model: str
    seed: int
    repository: Path
    folder: Path
    command: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file of the result."""
        return self.folder / f"{self.model}.json"

    def answer(self, progress: Callable[[str], None]) -> BlindTuning:
        """Measure the grid, tune, and judge; what is on disk is not repeated."""
        if self.path.exists():
            return file.read(self.path, BlindTuning)
        started = now()
        blind_models.write(self.repository, self.model, self.seed)
        rng = np.random.default_rng([self.seed, list(blind_models.KINDS).index(self.model), 4])
        traffic = Traffic(pattern="closed", clients=int(rng.choice(CLIENTS)))
        grid = self._grid(traffic, progress)
        p99s = [trial.p99_ms for trial in grid.points]
        p99_ms = float(f"{np.percentile(p99s, rng.uniform(*PERCENTILES)):.3g}")
        study = self._tuned(traffic, p99_ms, progress)
        judged = None
        if study.chosen is not None:
            with self._bench() as bench:
                judged = judgement.judge(study, grid, self.folder, bench, current=True, progress=progress)
        result = BlindTuning(
            **origin(self.command, started),
            model=self.model,
            seed=self.seed,
            load=str(traffic),
            p99_ms=p99_ms,
            feasible=sum(p99 <= p99_ms for p99 in p99s),
            measured=len(p99s),
            judged=judged,
            printed=printed(study),
            again=measured_again(study, judged) if judged is not None else None,
        )
        file.write(result, self.path)
        return result

    def _bench(self) -> LiveBench:
        config = read_variant(self.model, None, self.repository)
        return LiveBench(config=config, target=NO_TARGET, repository=self.repository, command=self.command)

    def _grid(self, traffic: Traffic, progress: Callable[[str], None]) -> Grid:
        most = read_variant(self.model, None, self.repository).max_batch_size
        sizes = sorted({max(1, round(share * most)) for share in SIZES})
        planned = candidates(sizes, DELAYS_US, [(count, None) for count in INSTANCES])
        path = self.folder / f"{self.model}.grid.json"
        empty = Grid(
            model=self.model,
            load=str(traffic),
            rows=traffic.rows,
            machine=Machine.this(),
            command=self.command,
            seed=self.seed,
            planned=len(planned),
        )
        grid = file.read(path, Grid) if path.exists() else empty
        with self._bench() as bench:
            return measure(
                grid, planned, path, bench, seconds=TRIAL_S, until=time.monotonic() + 3600, progress=progress
            )

    def _tuned(self, traffic: Traffic, p99_ms: float, progress: Callable[[str], None]) -> Study:
        """Run `perf.tune` in a process of its own, and keep what it prints; returns its study."""
        progress(f"{self.model}: perf.tune --load {traffic} --p99-ms {p99_ms:g}")
        command = [sys.executable, "-m", "perf.tune", self.model, "--load", str(traffic), "--p99-ms", f"{p99_ms:g}"]
        command += ["--repository", str(self.repository), "--results", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        question = Question(
            model=self.model, target=LatencyTarget(latency_ms=p99_ms), traffic=traffic, results=self.folder
        )
        study = Study.read(question.record) if question.record.exists() else None
        # An error ends with the same exit code as a search that found nothing, but leaves no finished study.
        if study is None or not study.limit or done.returncode not in (0, NO_CHOICE):
            raise Mistake(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout}")
        (self.folder / f"{self.model}.tune.txt").write_text(done.stdout)
        return study


def printed(study: Study) -> Interval | None:
    """The interval of the gain in throughput that `perf.tune` printed; None if the current configuration stays."""
    if study.chosen in (None, study.default):
        return None
    return last_comparison(study).gain(THROUGHPUT).interval


def measured_again(study: Study, judged: GridJudgement) -> Interval | None:
    """The gain in throughput by the rounds of the judgement; None if the current configuration stays."""
    if study.chosen in (None, study.default):
        return None
    current = next(stage for stage in (CURRENT, BEST) if any(t.candidate == study.default for t in judged.of(stage)))
    sides = [[trial.throughput_rows_per_s for trial in judged.of(stage)] for stage in (TUNED, current)]
    return rounds.paired(*sides)


def lines(result: BlindTuning) -> list[str]:
    """The result in sentences, for a terminal."""
    feasible = f"{result.feasible} of the grid's {result.measured} configurations met the target once"
    if result.judged is None:
        return [
            f"{result.model}, {result.load}, p99 <= {result.p99_ms:g} ms: NOT passed",
            f"  the tuner chose nothing, but {feasible}",
        ]
    gain = "none printed"
    if result.printed is not None:
        held = "holds" if result.held else "does NOT hold"
        gain = f"printed x {result.printed}, which {held} the gain measured again, x {result.again}"
    return [*judgement.lines(result.judged), f"  {feasible}", f"  gain in throughput: {gain}"]


def run(arguments: argparse.Namespace, command: tuple[str, ...], console: Console) -> int:
    """Make, measure, tune and judge every model; returns the exit code."""
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    models = arguments.models or list(blind_models.KINDS)
    if unknown := set(models) - set(blind_models.KINDS):
        raise Mistake(f"{', '.join(sorted(unknown))}: no blind model. Name one of {', '.join(blind_models.KINDS)}.")
    folder = arguments.results / f"seed_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {seed}: records in {folder}", markup=False)
    passed = True
    with tempfile.TemporaryDirectory(prefix="triton-batching-blind-") as repository:
        for model in models:
            question = BlindQuestion(
                model=model, seed=seed, repository=Path(repository), folder=folder, command=command
            )
            with progress_line(model) as progress:
                result = question.answer(progress)
            for line in lines(result):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            passed &= result.passed
    return int(not passed)


def main(argv: list[str] | None = None) -> int:
    """Measure what has no record and judge; exit code 1 if a gate is missed, 2 for a mistake."""
    parser = program_parser("python -m perf.studies.grid.blind", __doc__, example="--seed 7 blind_steps")
    parser.add_argument("models", nargs="*", help=f"default: {' '.join(blind_models.KINDS)}")
    parser.add_argument("--seed", type=int, help="of models, loads and targets (default: a new one, which is printed)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = command_line("grid.blind", argv)
    stopped = "stopped; go on with the same --seed. Finished trials are on record."
    return guarded(lambda: run(arguments, command, terminal()), on_interrupt=stopped)


if __name__ == "__main__":
    sys.exit(main())
