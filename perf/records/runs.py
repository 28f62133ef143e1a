"""Runs to compare, read from records of any kind: measurements, runs of the load generator, trials, studies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records import file, measurement, round_record
from perf.records.candidate import Candidate
from perf.records.file import RecordError
from perf.records.last_comparison import LastComparison, last_comparison
from perf.records.load_record import LoadRecord
from perf.records.measurement import Measurement
from perf.records.round_record import KeyedTrial
from perf.records.study import AGAINST, NOISE, Study, Trial, is_study
from perf.stats.percentile import percentile

WANTED = "that holds runs to compare"
# The stages of the default beside the choice.
DEFAULTS = (AGAINST, NOISE)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement of `model` with the configuration `config` under `load`, both in words.

    Latencies are in microseconds from the due time of a request, infinite if it got no right answer. `name` is that of
    the configuration file.
    """

    model: str
    config: str
    name: str
    load: str
    started_at: datetime
    throughput_rows_per_s: float
    p50_us: float | None
    p99_us: float | None


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs that an argument of perf.compare names.

    `noise` are interleaved runs of the same configuration, for the A/A noise. They may also be in `runs`; then they are
    compared with the others there.
    """

    title: str
    runs: tuple[Run, ...]
    noise: tuple[Run, ...] = ()


def read(text: str) -> Runs:
    """The runs of a file or folder; with `:NAME` after it, those of one configuration. Raises `RecordError`.

    Of a study, the runs of the configuration that it chose.
    """
    path, name = Path(text), ""
    if not path.exists():
        before, _, name = text.rpartition(":")
        path = Path(before)
    if not path.exists() or path == Path():
        raise RecordError(f"{text}: no such file or folder. Name records, for example perf/results/demo:dynamic.")
    if path.is_file():
        chosen = tuple(run for run in _of_file(path) if name in ("", run.name))
        noise = _chosen(Study.read(path), path).noise if is_study(path) else ()
    else:
        chosen, noise = tuple(run for run in _of_folder(path) if name in ("", run.name)), ()
    if not chosen:
        every = _of_file(path) if path.is_file() else _of_folder(path)
        known = ", ".join(sorted({run.name for run in every})) or "none"
        raise RecordError(f"{text}: holds no measurement of this configuration. It has: {known}.")
    return Runs(title=text, runs=chosen, noise=noise)


def of_study(path: Path) -> tuple[tuple[Runs, Runs], Study, LastComparison]:
    """The runs of a study's default and of its choice, the study, and its last comparison, from which they are.

    `path` is a study, or a folder with one. Raises `RecordError` unless the study compared its choice with its default.
    """
    path = _only_study(path)
    study = Study.read(path)
    compared = _comparison(study, path)
    if study.chosen == study.default:
        raise RecordError(f"{path}: the study chose the default itself, {study.default}: there is nothing to compare.")
    if not compared.current:
        loads = [trial.load for trial in study.trials if trial.candidate == study.default and trial.stage in DEFAULTS]
        raise RecordError(
            f"{path}: the default was measured under {', '.join(dict.fromkeys(loads)) or 'no load'}, the chosen "
            f"configuration under {compared.choice[0].load}, which cannot be compared. "
            f"See: triton-batching report {path.parent}"
        )
    default = Runs(title=f"{path}, default", runs=_trials(study, compared.current, path))
    return (default, _chosen(study, path)), study, compared


def _comparison(study: Study, path: Path) -> LastComparison:
    """The last comparison of a study that chose something; raises `RecordError`."""
    if study.chosen is None:
        raise RecordError(f"{path}: {_unchosen(study)}. See: triton-batching report {path.parent}")
    compared = last_comparison(study)
    if not compared.of(study.chosen):
        raise RecordError(
            f"{path}: the chosen configuration has no final trials. The same command continues the study: "
            f"{' '.join(study.command)}"
        )
    return compared


def _chosen(study: Study, path: Path) -> Runs:
    """The trials of the chosen configuration in the last comparison; those of each round's repeat are the noise."""
    compared = _comparison(study, path)
    trials = compared.of(study.chosen)
    again = [trial for trial in compared.again if trial.candidate == study.chosen]
    return Runs(title=f"{path}, chosen", runs=_trials(study, trials, path), noise=_trials(study, again, path))


def _unchosen(study: Study) -> str:
    if study.limit:
        return "nothing that was measured met the target, so the study chose nothing to compare"
    return f"the study is not finished. The same command continues it: {' '.join(study.command)}"


def _only_study(path: Path) -> Path:
    """The file, or the only study in a folder that chose something; raises `RecordError`."""
    if path.is_file():
        if is_study(path):
            return path
        raise RecordError(
            f"{path}: not a study, whose default and choice could be compared. "
            f"Name two records: triton-batching compare {path} OTHER"
        )
    if not path.is_dir():
        raise RecordError(f"{path}: no such file or folder. Name a study, or two sets of records.")
    studies = [entry for entry in sorted(path.glob("*.json")) if is_study(entry)]
    chosen = [entry for entry in studies if Study.read(entry).chosen is not None]
    if len(chosen or studies) == 1:
        return (chosen or studies)[0]
    if studies:
        named = ", ".join(entry.name for entry in chosen or studies)
        raise RecordError(f"{path}: holds {len(chosen or studies)} studies. Name one of them: {named}.")
    names = sorted({run.name for run in _of_folder(path)})
    sides = [name for name in names if name != NOISE]
    floor = f" --noise {path}:{NOISE}" if NOISE in names else ""
    if len(sides) > 1:
        call = f"triton-batching compare {path}:{sides[0]} {path}:{sides[1]}{floor}"
        raise RecordError(f"{path}: holds no study but records of {', '.join(sides)}. Name two of them: {call}")
    raise RecordError(
        f"{path}: holds no study but records of {', '.join(sides) or 'no configuration'}. "
        f"Name what to compare them with: triton-batching compare {path} OTHER"
    )


def _of_folder(path: Path) -> list[Run]:
    """The runs of all records in a folder; raises `RecordError` if none has any."""
    runs, others = [], []
    for entry in sorted(path.glob("*.json")):
        try:
            runs += list(_of_file(entry))
        except _OtherError as error:
            others.append(str(error))
    if not runs and others:
        more = f" (and {len(others) - 1} more files without measurements to compare)" if others[1:] else ""
        raise RecordError(others[0] + more)
    return runs


class _OtherError(RecordError):
    """A record without runs: one of another kind, or a study that chose nothing."""


def _trials(study: Study, trials: Sequence[Trial], path: Path) -> tuple[Run, ...]:
    return tuple(of_trial(trial, study.model, study.config_name, path=path) for trial in trials)


def of_trial(trial: Trial, model: str, name: str, rows: int = 1, *, path: Path) -> Run:
    """A trial as a run, with the name of its configuration and the rows of a request.

    `path` is the file or folder that the trial was read from. Raises `RecordError`.
    """
    content = f" ({trial.load_sha256[:8]})" if trial.load_sha256 else ""
    return Run(
        model=model,
        config=str(trial.candidate),
        name=name,
        load=f"{trial.load}{content}" + (f" x {rows} rows" if rows != 1 else ""),
        started_at=file.start_time(trial.started_at, path),
        throughput_rows_per_s=trial.throughput_rows_per_s,
        **_percentiles(trial.latencies_us),
    )


def _of_file(path: Path) -> Iterator[Run]:
    kind = file.kind_of(path)
    if kind == LoadRecord.KIND:
        yield _of_load(path)
    elif kind == KeyedTrial.KIND:
        slot, trial = round_record.read(path)
        yield of_trial(trial, slot.model, slot.side, slot.rows, path=path)
    elif kind == Study.KIND:
        study = Study.read(path)
        if study.chosen is None:
            raise _OtherError(f"{path}: {_unchosen(study)}. See: triton-batching report {path.parent}")
        yield from _chosen(study, path).runs
    elif kind and kind not in measurement.KINDS:
        raise _OtherError(file.other_kind(path, kind, WANTED))
    elif isinstance(swept := measurement.load(path), Measurement):
        yield _of_analyzer(swept, path)


def _of_analyzer(swept: Measurement, path: Path) -> Run:
    load, measured = swept.point.load, swept.measured
    shared = ", shared memory" if load.shared_memory else ""
    return Run(
        model=swept.point.model,
        config=swept.point.config_name,
        name=swept.point.config_name,
        load=f"closed:{load.concurrency} x {load.request_rows} rows, {load.protocol}{shared}, {load.data} inputs",
        started_at=file.start_time(swept.started_at, path),
        throughput_rows_per_s=measured.throughput_rows_per_s,
        p50_us=measured.p50_us,
        p99_us=measured.p99_us,
    )


def _of_load(path: Path) -> Run:
    record = file.read(path, LoadRecord)
    outcome, latencies_us = record.outcome, record.sample.latencies_us
    scale = f", times x {record.time_scale:g}" if record.time_scale != 1 else ""
    # The percentiles in the file are of answered requests only.
    recorded = {"p50_us": outcome.percentiles_us.get(50), "p99_us": outcome.percentiles_us.get(99)}
    try:
        config = text_format.Parse(record.config, ModelConfig())
    except text_format.ParseError as error:
        raise RecordError(f"{path}: config: no model configuration ({error}). Measure again.") from error
    return Run(
        model=record.model,
        config=str(Candidate.of(config)),
        name=record.config_name or "config",
        load=f"{record.load.title}, {record.transport}{scale}",
        started_at=file.start_time(record.started_at, path),
        throughput_rows_per_s=outcome.rows_per_s,
        **_percentiles(latencies_us) if latencies_us else recorded,
    )


def _percentiles(latencies_us: Sequence[float]) -> dict[str, Any]:
    names = {"p50_us": 50, "p99_us": 99}
    return {name: float(percentile(latencies_us, percent)) if latencies_us else None for name, percent in names.items()}
