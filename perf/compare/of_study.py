"""The last comparison of one study as lines of perf.compare: A is the current configuration, B the choice."""

from pathlib import Path

from perf.compare.comparison import QuantityComparison
from perf.records import runs
from perf.records.last_comparison import Gain, LastComparison, last_comparison
from perf.records.runs import Runs
from perf.records.study import Study, Trial, is_study

Compared = tuple[tuple[Runs, Runs], Study, LastComparison]


def of_study(path: Path) -> tuple[Runs, Runs, list[QuantityComparison], Study]:
    """Both sides of a study, or of the only one in a folder, a line for each quantity, and the study.

    Each interval has the level of the study's look. The choice is called slower by mistake, in either quantity and at
    any look, in at most 5 % of the cases, so the exit code needs no other level. Raises `RecordError`.
    """
    (old, new), study, compared = _kept(path) or runs.of_study(path)
    return old, new, [_line(study, compared, gain) for gain in compared.gains], study


def _kept(path: Path) -> Compared | None:
    """The same for the only study that has an answer, if it kept its default after a comparison; else None."""
    entries = [path] if path.is_file() else sorted(path.glob("*.json"))
    studies = [(entry, Study.read(entry)) for entry in entries if is_study(entry)]
    answered = [(entry, study) for entry, study in studies if study.chosen is not None]
    if len(answered) != 1:
        return None
    ((entry, study),) = answered
    compared = last_comparison(study)
    if study.chosen != study.default or not compared.pairs:
        return None
    sides = {"default": compared.current, "compared": compared.choice}
    old, new = (Runs(title=f"{entry}, {name}", runs=_runs(study, trials, entry)) for name, trials in sides.items())
    return (old, new), study, compared


def _runs(study: Study, trials: tuple[Trial, ...], path: Path) -> tuple[runs.Run, ...]:
    return tuple(runs.of_trial(trial, study.model, study.config_name, path=path) for trial in trials)


def _line(study: Study, compared: LastComparison, gain: Gain) -> QuantityComparison:
    return QuantityComparison(
        model=study.model,
        load=compared.choice[0].load,
        configs=(str(study.default), str(compared.candidate)),
        quantity=gain.name,
        unit=gain.quantity.unit,
        more_is_better=gain.quantity.more_is_better,
        a=gain.current,
        b=gain.choice,
        ratio=gain.interval,
        gate=gain.interval,
        noise=gain.noise,
        runs=gain.interval.count,
    )
