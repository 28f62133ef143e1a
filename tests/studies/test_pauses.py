"""What pauses cost, measured on a real server, and the constants of the simulation that come from it."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from perf.records import file
from perf.records.file import RecordError
from perf.simulate.constants import STANDARD
from perf.simulate.costs import cooled
from perf.studies import pauses
from perf.studies.pauses import PAUSES_MS, Pauses, cooling_us, main, table
from perf.studies.prediction.analyzer_schedule import ASLEEP
from perf.studies.prediction.comparison import MODELS

RESULTS = Path("perf/studies/results/pauses")


@pytest.mark.server
def test_one_round_of_a_model_is_measured_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # How exact the figures are is not asked here.
    for name, value in (("WINDOW_MS", 300), ("SPARSE_WINDOW_MS", 1500), ("REQUESTS", 10)):
        monkeypatch.setattr(pauses, name, value)
    assert main(["simulated_accelerator", "--rounds", "1", "--results", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "simulated_accelerator" in output
    assert str(tmp_path) in output.replace("\n", "")
    (pause_round,) = file.read(tmp_path / "simulated_accelerator.json", Pauses).rounds
    assert tuple(pause_round.computing_us) == tuple(pause_round.queue_us) == PAUSES_MS
    assert all(us > 20_500 for us in pause_round.computing_us.values())  # it sleeps for so long
    assert (
        min(pause_round.closed_way_us, pause_round.open_way_us, pause_round.late_us, *pause_round.queue_us.values()) > 0
    )


@pytest.mark.parametrize("words", [["nothing"], ["ranker", "--rounds", "0"]])
def test_mistakes_are_said_before_anything_is_measured(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--results", str(tmp_path)]) == 2
    assert "nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_shows_medians_beside_what_is_simulated() -> None:
    pauses = file.read(RESULTS / "ranker.json", Pauses)
    way, dispatch, late, *_ = (list(column.cells) for column in table([pauses]).columns[1:])
    assert way == [f"x {pauses.way:.2f}", f"x {ASLEEP:.2f}"]
    assert dispatch == [f"{pauses.dispatched_us(None):.0f} -> {pauses.dispatched_us(4):.0f}", "the same"]
    assert late == [f"{pauses.late_us:.0f}", f"{STANDARD.late_us:.0f}"]


def test_another_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": 1, "kind": "aimd_cap"}')
    with pytest.raises(RecordError, match="aimd_cap"):
        file.read(tmp_path / "other.json", Pauses)


def test_the_constants_of_the_simulation_are_the_medians_and_the_fit() -> None:
    measured = [file.read(RESULTS / f"{model}.json", Pauses) for model in MODELS]
    assert round(median(pauses.way for pauses in measured), 1) == ASLEEP
    assert round(median(pauses.late_us for pauses in measured), -1) == STANDARD.late_us
    assert cooling_us(measured) == STANDARD.cooling_us


def test_the_fit_finds_the_constant_that_made_the_times() -> None:
    exact = {pause: 3000 + 1000 * cooled(pause * 1e3, 23_000) for pause in PAUSES_MS}
    (round_, *_) = file.read(RESULTS / "ranker.json", Pauses).rounds
    assert cooling_us([Pauses(model="made", rounds=(replace(round_, computing_us=exact),))]) == 23_000
