"""The last comparison of one study as lines of perf.compare: A is the current configuration, B the choice."""

from pathlib import Path

from perf.compare.comparison import QuantityComparison
from perf.records import runs
from perf.records.last_comparison import Gain, LastComparison
from perf.records.runs import Runs
from perf.records.study import Study


def of_study(path: Path) -> tuple[Runs, Runs, list[QuantityComparison]]:
    """Both sides of a study, or of the only one in a folder, and a line for each quantity; raises `RecordError`.

    Each interval has the level of the study's look. The choice is called slower by mistake, in either quantity and at
    any look, in at most 5 % of the cases, so the exit code needs no other level.
    """
    (old, new), study, compared = runs.of_study(path)
    return old, new, [_line(study, compared, gain) for gain in compared.gains]


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
