"""What pauses cost, measured on a real server, and kept."""

from pathlib import Path

import pytest

from perf.records.record import RecordError
from perf.simulate.costs import ASLEEP, LATE_US
from perf.studies.pauses import PAUSES_MS, load, main, shown


@pytest.mark.server
def test_one_round_of_a_model_is_measured_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulated_accelerator", "--rounds", "1", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "simulated_accelerator" in said
    assert str(tmp_path) in said.replace("\n", "")
    (one,) = load(tmp_path / "simulated_accelerator.json").rounds
    assert tuple(one.computing_us) == tuple(one.queue_us) == PAUSES_MS
    assert all(us > 20_500 for us in one.computing_us.values())  # it sleeps for so long
    assert min(one.closed_way_us, one.open_way_us, one.late_us, *one.queue_us.values()) > 0


@pytest.mark.parametrize("words", [["nothing"], ["ranker", "--rounds", "0"]])
def test_mistakes_are_said_before_anything_is_measured(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--results", str(tmp_path)]) == 2
    assert "nothing" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_table_shows_medians_beside_what_is_simulated() -> None:
    found = load(Path("perf/studies/results/pauses/ranker.json"))
    way, dispatch, late, *_ = (list(column.cells) for column in shown([found]).columns[1:])
    assert way == [f"x {found.way:.2f}", f"x {ASLEEP:.2f}"]
    assert dispatch == [f"{found.dispatched_us(None):.0f} -> {found.dispatched_us(4):.0f}", "the same"]
    assert late == [f"{found.late_us:.0f}", f"{LATE_US:.0f}"]


def test_another_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": 1, "kind": "aimd_cap"}')
    with pytest.raises(RecordError, match="not a record of pauses"):
        load(tmp_path / "other.json")
