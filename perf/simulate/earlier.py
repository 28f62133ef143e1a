"""Trials that `perf.tune` measured earlier of the simulated configurations, to print beside the predictions."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import ServiceTimes
from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.study import Study, Trial, is_study
from perf.records.traffic import Traffic
from perf.stats.percentile import percentile
from serve.policies import queue_limit


@dataclass(frozen=True, kw_only=True)
class EarlierTrials:
    """Medians over `count` earlier trials of one configuration."""

    throughput_rows_per_s: float
    p99_ms: float
    count: int


def earlier_trials(
    folder: Path, config: ModelConfig, traffic: Traffic, ramp: ServiceTimes
) -> dict[Candidate, EarlierTrials]:
    """Return, by configuration, the trials under the same load in the studies of `folder`.

    Only studies of the ramp's machine, versions and model file count, whose configuration differs from `config` at most
    in searched values.
    """
    by_candidate: defaultdict[Candidate, list[Trial]] = defaultdict(list)
    for path in sorted(folder.glob(f"{config.name}.*.json")):
        study = _study(path)
        if study is not None and _comparable(study, config, ramp):
            for trial in study.trials:
                if _same_load(trial, traffic):
                    by_candidate[trial.candidate].append(trial)
    return {candidate: _medians(trials) for candidate, trials in by_candidate.items()}


def _study(path: Path) -> Study | None:
    try:
        return Study.read(path) if is_study(path) else None
    except RecordError:
        return None


def _comparable(study: Study, config: ModelConfig, ramp: ServiceTimes) -> bool:
    identity = ramp.machine, dict(ramp.versions), ramp.model_sha256
    before = text_format.Parse(study.before_pbtxt, ModelConfig())
    return (study.machine, dict(study.versions), study.model_sha256) == identity and _plain(before) == _plain(config)


def _plain(config: ModelConfig) -> ModelConfig:
    """Drop searched values, the name (optional in a file) and the queue's limit, which no trial reached."""
    plain = Candidate(max_batch_size=1).apply(config)
    plain.name = ""
    plain.parameters.pop(queue_limit.KEY, None)
    return plain


def _same_load(trial: Trial, traffic: Traffic) -> bool:
    same_rows = trial.counted.rows == traffic.rows * trial.counted.requests
    return (trial.load, trial.load_sha256) == (str(traffic), traffic.sha256) and same_rows and not trial.faults


def _medians(trials: Sequence[Trial]) -> EarlierTrials:
    return EarlierTrials(
        throughput_rows_per_s=median(trial.throughput_rows_per_s for trial in trials),
        p99_ms=median(float(percentile(trial.latencies_us, 99)) for trial in trials) / 1e3,
        count=len(trials),
    )
