"""Runs read from records of whatever kind: perf_analyzer's, a fleet's, or the trials of a study, as one type."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.fleet.load import Load
from perf import record, round_record
from perf.candidate import Candidate
from perf.percentile import percentile
from perf.record import Record, RecordError
from perf.study import AGAINST, FINAL, NOISE, Study, Trial, is_study


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement: of `model` as `config` has it (in words), under `load` (in words).

    Latencies in microseconds from when a request was due. `latencies_us` and `due_s` hold every request, infinite
    where it was not answered right; empty where the record has percentiles only. `name` is the configuration's file.
    """

    model: str
    config: str
    name: str
    load: str
    started_at: datetime
    seconds: float
    throughput_rows_per_s: float
    p50_us: float | None
    p99_us: float | None
    latencies_us: tuple[float, ...] = ()
    due_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What one argument names. `noise` are runs of the same once more, where they were made in turn with these."""

    title: str
    runs: tuple[Run, ...]
    noise: tuple[Run, ...] = ()


def read(text: str) -> Runs:
    """The runs of a file or folder, with `:NAME` behind it those of one configuration; raises `RecordError`.

    Of a study those of the configuration that it chose.
    """
    path, name = Path(text), ""
    if not path.exists():
        before, _, name = text.rpartition(":")
        path = Path(before)
    if not path.exists() or path == Path():
        raise RecordError(f"{text}: no such file or folder. Name records, for example perf/results/demo:dynamic.")
    if path.is_file() and is_study(path):
        return of_study(path)[1]
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    runs = [run for file in files for run in _of_file(file)]
    chosen = tuple(run for run in runs if name in ("", run.name))
    if not chosen:
        known = ", ".join(sorted({run.name for run in runs})) or "none"
        raise RecordError(f"{text}: no measurement of such a configuration is there. There is: {known}.")
    return Runs(title=text, runs=chosen)


def of_study(path: Path) -> tuple[Runs, Runs]:
    """The trials of the default and those of the configuration that was chosen; raises `RecordError` without both."""
    study = Study.read(path)
    stage = AGAINST if any(trial.stage == AGAINST for trial in study.trials) else FINAL
    old = [trial for trial in study.trials if (trial.stage, trial.candidate) == (stage, study.default)]
    new = [trial for trial in study.trials if (trial.stage, trial.candidate) == (stage, study.chosen)]
    noise = [trial for trial in study.trials if trial.stage == NOISE]
    if not old or not new:
        raise RecordError(f"{path}: the study has no trials of both the default and a chosen configuration. Finish it.")
    sides = (
        Runs(title=f"{path}, {name}", runs=_trials(study, trials), noise=_trials(study, again))
        for name, trials, again in (("default", old, noise), ("chosen", new, []))
    )
    return next(sides), next(sides)


def _trials(study: Study, trials: Sequence[Trial]) -> tuple[Run, ...]:
    return tuple(of_trial(trial, study.model, study.config_name) for trial in trials)


def of_trial(trial: Trial, model: str, name: str, rows: int = 1) -> Run:
    """One trial of a model with the configuration of that name, of requests of `rows` rows."""
    return Run(
        model=model,
        config=str(trial.candidate),
        name=name,
        load=trial.load if rows == 1 else f"{trial.load} x {rows} rows",
        started_at=datetime.fromisoformat(trial.started_at),
        seconds=trial.seconds,
        throughput_rows_per_s=trial.throughput_rows_per_s,
        **_percentiles(trial.latencies_us),
        latencies_us=trial.latencies_us,
        due_s=trial.due_s,
    )


def _of_file(path: Path) -> Iterator[Run]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = content.get("kind")
    except (OSError, ValueError, AttributeError) as error:
        raise RecordError(f"{path}: not a record ({error}). Remove it or name others.") from error
    if kind == "fleet":
        yield _of_fleet(path, content)
    elif kind == round_record.KIND:
        slot, trial = round_record.read(path)
        yield of_trial(trial, slot.model, slot.side, slot.rows)
    elif kind == "study":
        yield from of_study(path)[1].runs
    elif isinstance(found := record.load(path), Record):
        yield _of_analyzer(found)


def _of_analyzer(found: Record) -> Run:
    load, measured = found.point.load, found.measured
    shared = ", shared memory" if load.shared_memory else ""
    return Run(
        model=found.point.model,
        config=found.point.config_name,
        name=found.point.config_name,
        load=f"closed:{load.concurrency} x {load.request_rows} rows, {load.protocol}{shared}, {load.data} inputs",
        started_at=datetime.fromisoformat(found.started_at),
        seconds=len(measured.windows) * measured.window_ms / 1e3,
        throughput_rows_per_s=measured.throughput_rows_per_s,
        p50_us=measured.p50_us,
        p99_us=measured.p99_us,
    )


def _of_fleet(path: Path, content: dict[str, Any]) -> Run:
    try:
        load = Load(**content["load"] | {"trace": Path(content["load"]["trace"]) if content["load"]["trace"] else None})
        scale = f", times x {content['time_scale']:g}" if content["time_scale"] != 1 else ""
        sample = content.get("sample") or {"due_s": [], "latencies_us": []}
        outcome, latencies_us = content["outcome"], [math.inf if us is None else us for us in sample["latencies_us"]]
        p50_us, p99_us = (outcome["percentiles_us"][percent] for percent in ("50", "99"))
        return Run(
            model=content["model"],
            config=str(Candidate.of(text_format.Parse(content["config"], ModelConfig()))),
            name=content["config_name"] or "config",
            load=f"{load.title}, {content['transport']}{scale}",
            started_at=datetime.fromisoformat(content["started_at"]),
            seconds=outcome["window_s"],
            throughput_rows_per_s=outcome["rows_per_s"],
            # Those that were written down are of answered requests only.
            **_percentiles(latencies_us) if latencies_us else {"p50_us": p50_us, "p99_us": p99_us},
            latencies_us=tuple(latencies_us),
            due_s=tuple(sample["due_s"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, text_format.ParseError) as error:
        raise RecordError(f"{path}: not a fleet record of this version ({error}). Measure again.") from error


def _percentiles(latencies_us: Sequence[float]) -> dict[str, Any]:
    names = {"p50_us": 50, "p99_us": 99}
    return {name: float(percentile(latencies_us, percent)) if latencies_us else None for name, percent in names.items()}
