"""Measure the tuned configuration of the study in git against the current one, in rounds of random order.

`python -m perf.studies.replicate.tuned --results FOLDER` writes the record whose page is "What tuning bought".
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from perf.load.variant import read
from perf.records import file
from perf.records.study import Study
from perf.records.traffic import Traffic
from perf.studies.experiment import command_line, progress_line
from perf.studies.grid.record import GridTrial, LaterRounds
from perf.studies.pages.tools import TUNED_STUDY
from perf.tune.live import LiveBench
from triton_batching.options import DAY_S, MOST_ROUNDS, number, path, whole_number
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

# How a study calls config.pbtxt.
DEFAULT = "default"
NAME = "simulated_accelerator.closed-32.p99-55ms.later.json"


def measure(
    study: Study, *, rounds: int, seconds: float, command: Sequence[str], progress: Callable[[str], None]
) -> list[GridTrial]:
    """The trials of `rounds` rounds, stages `tuned` and `default`; raises `Mistake` if the study chose nothing."""
    if study.chosen is None:
        raise Mistake(f"the study of {study.model} chose no configuration, so there is nothing to measure again.")
    traffic, order = Traffic.of_record(study.load, rows=1), random.Random(1)
    sides = {"tuned": study.chosen, "default": study.default}
    trials = []
    config = read(study.model, None if study.config_name == DEFAULT else study.config_name)
    with LiveBench(config=config, target=study.target, command=tuple(command), progress=progress) as bench:
        for round_ in range(1, rounds + 1):
            for stage in order.sample(sorted(sides), 2):
                progress(f"round {round_} of {rounds}, {stage}: {sides[stage]}")
                trial = bench.measure(sides[stage], traffic, stage=stage, round=round_, seconds=seconds)
                trials.append(GridTrial.of(trial))
    return trials


def main(argv: list[str] | None = None) -> int:
    """Measure and write the record; exit code 1 if a server failed, 2 for a mistake."""
    parser = program_parser("python -m perf.studies.replicate.tuned", __doc__, example="--results perf/results/mine")
    parser.add_argument("--rounds", type=whole_number(1, MOST_ROUNDS), default=3, help="trials of each (default 3)")
    parser.add_argument("--seconds", type=number(above=0, most=DAY_S), default=5.0, help="of a trial (default 5)")
    parser.add_argument("--results", type=path, required=True, help="folder of the record")
    arguments = parser.parse_args(argv)
    command = command_line("replicate.tuned", argv)
    return guarded(lambda: _run(arguments, command), on_interrupt="stopped; nothing was recorded.")


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    folder: Path = arguments.results
    file.check_folder(folder)
    study = Study.read(TUNED_STUDY)
    with progress_line("tuned") as progress:
        trials = measure(study, rounds=arguments.rounds, seconds=arguments.seconds, command=command, progress=progress)
    record = LaterRounds(model=study.model, load=study.load, points=tuple(trials))
    terminal().print(f"record: {file.write(record, folder / NAME, command=command)}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
