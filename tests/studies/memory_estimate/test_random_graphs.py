"""The estimate on random graphs: exact, or a bound that contains what onnxruntime measures."""

import pytest

from perf.studies.memory_estimate.random_check import SETTINGS, check, main
from perf.studies.memory_estimate.random_graph import random_graph


def test_a_seed_gives_one_graph() -> None:
    assert random_graph(3).SerializeToString() == random_graph(3).SerializeToString()
    assert all(len(random_graph(seed).graph.node) >= 30 for seed in range(20))


@pytest.mark.parametrize("first", range(0, 40, len(SETTINGS)))
def test_the_estimate_holds_on_random_graphs(first: int) -> None:
    outcomes = [check(seed) for seed in range(first, first + len(SETTINGS))]
    assert [outcome for outcome in outcomes if outcome.wrong] == []


def test_the_program_counts_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "5"]) == 0
    assert "exact" in capsys.readouterr().out
