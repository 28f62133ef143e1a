"""What an argument of the comparison names: a study's two sides, and good records of other kinds."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import study

from perf.compare import __main__ as compare
from perf.compare.comparison import compare as lines_of
from perf.compare.of_study import of_study
from perf.records import measurement, runs
from perf.records.measurement import RecordError
from perf.records.study import AGAINST, FINAL, HALVING, NOISE, Study
from perf.stats.verdict import CANNOT_TELL, FASTER

GRID = Path(__file__).parents[3] / "perf" / "studies" / "results" / "grid"
TUNED = GRID / "simulated_accelerator.closed-32.throughput.p99-55ms.json"
OTHER = GRID / "simulated_accelerator.closed-32.throughput.p99-80ms.json"


def stages(tuned_study: Study, *names: str) -> list[float]:
    """Throughput of the trials of these stages, in the order in which they were measured."""
    return [trial.throughput_rows_per_s for trial in tuned_study.trials if trial.stage in names]


def test_a_finished_study_is_its_default_against_its_choice() -> None:
    """The default's two trials, of which the second is the noise floor too, in turn with the chosen one's."""
    tuned_study = Study.read(TUNED)
    assert {HALVING, AGAINST, FINAL, NOISE} == {trial.stage for trial in tuned_study.trials}
    lines = {line.quantity: line for line in of_study(TUNED)[2]}
    throughput = lines["throughput"]
    ratios = np.divide(stages(tuned_study, FINAL), stages(tuned_study, AGAINST, NOISE))
    assert throughput.ratio.value == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert (throughput.runs, throughput.ratio.count, throughput.verdict.word) == (2, 2, FASTER)
    assert throughput.configs == (str(tuned_study.default), str(tuned_study.chosen))
    assert throughput.noise is not None
    (first,), (second,) = stages(tuned_study, AGAINST), stages(tuned_study, NOISE)
    assert throughput.noise.value == pytest.approx(second / first, rel=1e-9)


def test_a_study_of_pairs_keeps_its_noise_apart(tmp_path: Path) -> None:
    tuned_study = study()
    tuned_study.write(tmp_path / "ranker.json")
    (old, new), read, compared = runs.of_study(tmp_path)
    assert read == tuned_study
    assert (len(old.runs), len(new.runs), old.noise) == (4, 4, ())
    assert (len(compared.current), len(compared.choice), len(compared.again)) == (4, 4, 4)
    assert [run.throughput_rows_per_s for run in old.runs] == [
        trial.throughput_rows_per_s for trial in compared.current
    ]
    assert {run.load for run in (*old.runs, *new.runs)} == {tuned_study.load}


def test_noise_beside_one_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(study().write(tmp_path / "ranker.json"))
    assert compare.main([path, "--noise", path, "--out", str(tmp_path / "compared.json")]) == 2
    assert "--noise does nothing for one study, which has A/A pairs of its own" in capsys.readouterr().err


def test_two_studies_and_a_folder_with_one_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "compared.json")]
    assert compare.main([str(TUNED), str(OTHER), "--threshold", "50%", *out]) == 0
    assert "closed:32" in capsys.readouterr().out
    folder = tmp_path / "studies"
    folder.mkdir()
    shutil.copy(TUNED, folder)
    shutil.copy(GRID / "simulated_accelerator.default.b32.k1.json", folder)
    replace(study(), chosen=None, limit="cores: they are full").write(folder / "a.json")
    assert compare.main([str(folder), *out]) == 0
    assert compare.main([str(folder), str(OTHER), "--threshold", "50%", *out]) == 0
    shutil.copy(OTHER, folder)
    assert compare.main([str(folder), *out]) == 2
    assert f"holds 2 studies. Name one of them: {TUNED.name}" in capsys.readouterr().err.replace("\n", " ")


def test_equal_records_are_not_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([str(TUNED), f"{TUNED.parent}/./{TUNED.name}", "--out", str(tmp_path / "compared.json")]) == 0
    assert "are the same records" in capsys.readouterr().out
    lines = lines_of(runs.read(str(TUNED)), runs.read(str(TUNED)))
    assert {line.verdict.word for line in lines} == {CANNOT_TELL}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen": None, "limit": ""}, "The same command continues it: python -m perf.tune ranker"),
        ({"chosen": study().default}, "chose the default itself"),
        ({"chosen": None, "limit": "cores: full"}, "nothing that was measured met the target"),
    ],
)
def test_a_study_without_two_sides_says_why(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = replace(study(), **changes).write(tmp_path / "one.json")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=message):
        runs.of_study(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("simulated_accelerator.default.b32.k1.json", "service_times"),
        ("simulated_accelerator.closed-32.json", "grid"),
    ],
)
def test_a_good_record_of_another_kind_is_named(name: str, kind: str, tmp_path: Path) -> None:
    shutil.copy(GRID / name, tmp_path)
    for read_folder in (lambda: runs.read(str(tmp_path)), lambda: list(measurement.read(tmp_path))):
        with pytest.raises(RecordError) as caught:
            read_folder()
        assert f"but one of kind '{kind}'" in str(caught.value)
        assert "Remove" not in str(caught.value)
