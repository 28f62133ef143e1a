"""The search in order of time and what it left out; and the machine, versions and commands."""

import hashlib
import math

from perf.records.study import PROFILE, Trial, phase
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence, quantile_of, word
from perf.report.study.tail import short
from perf.report.units import count, duration, ms, rate

TITLE = "The search, and what it left out"
# Settings that affect batching but are not searched.
OUTSIDE = (
    "queue policies (with one, servers before the fix of core#509 stop for 500 ms at a time)",
    "priorities",
    "preserve_ordering",
    "requests of another number of rows",
)


def search(evidence: Evidence) -> Section:
    """The log of the search, its cost and its limits."""
    study = evidence.study
    live = sum(trial.seconds for trial in study.trials)
    profiled = sum(trial.stage == PROFILE for trial in study.trials)
    ends = [_at(evidence, trial) + trial.seconds for trial in study.trials]
    last = max([step.at_s for step in study.steps] + ends, default=0.0)
    cost = (
        f"Total: {count(len(evidence.trials), 'measurement')} with {duration(live)} of live load, "
        f"{count(len(study.predictions), 'configuration')} simulated, "
        f"{duration(last)} from the first simulation to the end"
        + (f" ({profiled} of the measurements only profiled)" if profiled else "")
        + "."
    )
    rows = _rows(evidence)
    return Section(
        name="search",
        title=TITLE,
        sentences=(cost, *untested(evidence)),
        missing=() if study.steps else ("The record has no log of the search.",),
        grids=(Grid(titles=("after", "what", "seconds\nof load", "result"), rows=rows, left=4, summary=_summary(rows)),)
        if rows
        else (),
        data={
            "measurements": len(evidence.trials),
            "live_s": live,
            "wall_s": last,
            "simulated": len(study.predictions),
            "not_tested": list(untested(evidence)),
        },
    )


def untested(evidence: Evidence) -> tuple[str, ...]:
    """Sentences on what was searched and what was left out."""
    study = evidence.study
    if not study.space:
        return ("The record does not say which values were searched.",)
    space = "; ".join(f"{name} {_values(values)}" for name, values in study.space.items() if values)
    combinations = math.prod(len(values) for values in study.space.values() if values)
    simulated, measured = len(evidence.predicted), len(evidence.candidates)
    unmeasured = max(0, simulated - sum(candidate in evidence.predicted for candidate in evidence.candidates))
    more = "" if any(prediction.candidate.preferred for prediction in study.predictions) else "preferred sizes, "
    return (
        f"Searched: {space} ({combinations:,} combinations).",
        f"Not tested: {unmeasured} of {simulated} simulated configurations were not measured ({measured} were), and "
        f"{max(0, combinations - simulated)} combinations were not simulated: they behave like a simpler one, or were "
        "left out.",
        f"Outside the search: {more}{', '.join(OUTSIDE)}, and all loads but {study.load}.",
    )


def _values(values: tuple[int, ...]) -> str:
    texts = [f"{value:,}" for value in values]
    return ", ".join(texts) if len(texts) <= 8 else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"


def _summary(rows: tuple[tuple[str, ...], ...]) -> str:
    return f"The whole log, {count(len(rows), 'line')}" if len(rows) > 30 else ""


def _rows(evidence: Evidence) -> tuple[tuple[str, ...], ...]:
    """Steps and trials by time; a trial comes before the steps of the same second that follow from it."""
    # The log repeats each trial, which has a line of its own.
    repeated = tuple(f"{trial.candidate} at {trial.load}, " for trial in evidence.study.trials)
    steps = [step for step in evidence.study.steps if not repeated or not step.text.startswith(repeated)]
    entries = [(step.at_s, 1, (step.text, "", "")) for step in steps]
    entries += [(_at(evidence, trial), 0, _measured(evidence, trial)) for trial in evidence.study.trials]
    ordered = sorted(entries, key=lambda entry: entry[:2])
    return tuple((duration(at), *rest) for at, _, rest in ordered)


def _measured(evidence: Evidence, trial: Trial) -> tuple[str, str, str]:
    what = f"measured: {evidence.label(trial.candidate)}, {trial.load} ({phase(trial.stage, trial.round)})"
    p99 = quantile_of([trial], 99)
    result = (
        f"{rate(trial.throughput_rows_per_s)}, p99 {ms(p99.value_ms)} ({short(p99)}), "
        f"n = {trial.requests:,}: {word(evidence.passed([trial]))}" + (", stopped early" if trial.early else "")
    )
    return what, f"{trial.seconds:.1f}", result


def _at(evidence: Evidence, trial: Trial) -> float:
    """Seconds from the start of the study to a trial; 0 if unknown."""
    return max(0.0, evidence.began_s(trial) or 0.0)


def provenance(evidence: Evidence) -> Section:
    """The machine, versions, digests and commands of a study."""
    study = evidence.study
    machine = study.machine
    facts = {
        "model": study.model,
        "configuration": study.config_name,
        "load": study.load,
        "target": f"{study.target.percent:g} % of requests within {study.target.latency_ms:g} ms",
        "objective": study.objective,
        "started": study.started_at.replace("T", " ").replace("+00:00", " UTC"),
        "CPU": machine.cpu,
        "cores": str(machine.cores),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "system": machine.system,
        "GPU": machine.gpu or "none",
        **dict(sorted(study.versions.items())),
        "SHA-256 of the model file": study.model_sha256 or "not recorded",
        "SHA-256 of the current config.pbtxt": digest(study.before_pbtxt),
        "SHA-256 of the tuned config.pbtxt": digest(study.after_pbtxt),
        "service-time records": ", ".join(study.profiles) or "none",
    }
    commands = dict.fromkeys(
        " ".join(command) for command in (study.command, *(trial.command for trial in study.trials))
    )
    rows = tuple((command,) for command in commands if command)
    return Section(
        name="provenance",
        title="Provenance",
        sentences=("This page is made from the records alone; equal records give equal bytes.",),
        missing=() if study.model_sha256 else ("The record has no digest of the model file.",),
        grids=(
            Grid(titles=("", ""), rows=tuple(facts.items()), left=2),
            Grid(titles=("commands: the study, then its measurements",), rows=rows),
        ),
        data={"facts": facts, "commands": list(commands)},
    )


def digest(text: str) -> str:
    """The SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else "no file"
