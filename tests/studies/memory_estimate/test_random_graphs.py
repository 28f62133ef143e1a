"""The estimate on random graphs: exact, or a bound that contains what onnxruntime measures."""

from pathlib import Path

import pytest

from perf.records import file
from perf.studies.memory_estimate.random_check import NAME, SETTINGS, RandomRecord, check, main
from perf.studies.memory_estimate.random_graph import random_graph


def test_a_seed_gives_one_graph() -> None:
    assert random_graph(3).SerializeToString() == random_graph(3).SerializeToString()
    assert all(len(random_graph(seed).graph.node) >= 30 for seed in range(20))


@pytest.mark.parametrize("first", range(0, 40, len(SETTINGS)))
def test_the_estimate_holds_on_random_graphs(first: int) -> None:
    outcomes = [check(seed) for seed in range(first, first + len(SETTINGS))]
    assert [outcome for outcome in outcomes if outcome.wrong] == []


def test_the_program_writes_a_record_of_the_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "5", "--results", str(tmp_path)]) == 0
    assert "exact" in capsys.readouterr().out
    record = file.read(tmp_path / NAME, RandomRecord)
    assert (record.first, sum(record.graphs.values()), record.wrong) == (5, 2, ())
    assert "exact" in record.graphs
    assert record.command[:2] == ("python", "-m")
