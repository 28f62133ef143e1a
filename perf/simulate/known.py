"""What `perf.tune` measured of the configurations that are simulated, to stand beside the predictions."""

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
class Known:
    """One configuration as measured: medians over `trials` trials."""

    throughput_rows_per_s: float
    p99_ms: float
    trials: int


def known(folder: Path, config: ModelConfig, traffic: Traffic, ramp: ServiceTimes) -> dict[Candidate, Known]:
    """By configuration, all trials under the same load in the studies of `folder` that are of what `ramp` is of.

    That is: of the same machine, versions and model file, and of a configuration that differs from `config` in what is
    searched only.
    """
    found: defaultdict[Candidate, list[Trial]] = defaultdict(list)
    for path in sorted(folder.glob(f"{config.name}.*.json")):
        study = _study(path)
        if study is not None and _fits(study, config, ramp):
            for trial in study.trials:
                if _same(trial, traffic):
                    found[trial.candidate].append(trial)
    return {candidate: _known(trials) for candidate, trials in found.items()}


def _study(path: Path) -> Study | None:
    try:
        return Study.read(path) if is_study(path) else None
    except RecordError:
        return None


def _fits(study: Study, config: ModelConfig, ramp: ServiceTimes) -> bool:
    of_ramp = ramp.machine, dict(ramp.versions), ramp.model_sha256
    before = text_format.Parse(study.before_pbtxt, ModelConfig())
    return (study.machine, dict(study.versions), study.model_sha256) == of_ramp and _plain(before) == _plain(config)


def _plain(config: ModelConfig) -> ModelConfig:
    """Without what is searched, the name, which a file need not say, and the queue's limit, which no trial reached."""
    plain = Candidate(max_batch_size=1).apply(config)
    plain.name = ""
    plain.parameters.pop(queue_limit.KEY, None)
    return plain


def _same(trial: Trial, traffic: Traffic) -> bool:
    rows = trial.counted.rows == traffic.rows * trial.counted.requests
    return trial.load == str(traffic) and rows and not traffic.shapes and not trial.faults


def _known(trials: Sequence[Trial]) -> Known:
    return Known(
        throughput_rows_per_s=median(one.throughput_rows_per_s for one in trials),
        p99_ms=median(float(percentile(one.latencies_us, 99)) for one in trials) / 1e3,
        trials=len(trials),
    )
