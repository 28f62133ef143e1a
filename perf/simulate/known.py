"""What `perf.tune` measured of the configurations that are simulated, to stand beside the predictions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from clients.fleet.percentile import percentile
from clients.machine import Machine
from perf.candidate import Candidate
from perf.study import Study, Trial, is_study
from perf.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Known:
    """One configuration as measured: medians over `trials` trials."""

    throughput_rows_per_s: float
    p99_ms: float
    trials: int


def known(folder: Path, model: str, traffic: Traffic) -> dict[Candidate, Known]:
    """By configuration, all trials of the studies in `folder` that were made on this machine under the same load."""
    found: defaultdict[Candidate, list[Trial]] = defaultdict(list)
    for path in sorted(folder.glob(f"{model}.*.json")):
        if is_study(path):
            study = Study.read(path)
            if (study.model, study.machine) == (model, Machine.this()):
                for trial in study.trials:
                    if _same(trial, traffic):
                        found[trial.candidate].append(trial)
    return {candidate: _known(trials) for candidate, trials in found.items()}


def _same(trial: Trial, traffic: Traffic) -> bool:
    rows = trial.counted.rows == traffic.rows * trial.counted.requests
    return trial.load == str(traffic) and rows and not traffic.shapes and not trial.faults


def _known(trials: Sequence[Trial]) -> Known:
    return Known(
        throughput_rows_per_s=median(one.throughput_rows_per_s for one in trials),
        p99_ms=median(float(percentile(one.latencies_us, 99)) for one in trials) / 1e3,
        trials=len(trials),
    )
