"""The experiment on padded requests: its encoders, its routes, its gates, and its answers on a server."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from sleepers import PLAIN

from perf.records import file
from perf.stats.interval import Interval
from perf.studies.experiment import origin
from perf.studies.padded import encoders
from perf.studies.padded.__main__ import checked, main, point
from perf.studies.padded.record import (
    CLIENT,
    KINDS,
    MIXES,
    RAGGED,
    SEPARATE,
    SERVER,
    SHIPPED,
    SPLIT,
    PaddedPoint,
    PaddedRecord,
    gates,
    routes,
    spread,
    word,
)
from perf.studies.padded.served import repository, requests
from serve.launcher import Settings, launch


@pytest.mark.parametrize("kind", encoders.KINDS)
def test_a_seed_makes_the_same_encoder_again(kind: str, tmp_path: Path) -> None:
    first, again, other = (
        encoders.write(tmp_path / f"{name}.onnx", kind, seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"), full_check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_sent_only_without_the_servers_padding(kind: str) -> None:
    mix = MIXES[-1]
    for route in routes(kind):
        sent = requests(kind, mix, route)
        tokens = [request["TOKENS" if route == RAGGED else "tokens"] for request in sent]
        assert [array.shape for array in tokens] == [
            (1, mix.longest if route == CLIENT else length) for length in mix.lengths
        ]
        # The shipped encoder takes token 0 as padding, and needs no mask.
        assert all(("mask" in request) == (kind != SHIPPED and route in (SEPARATE, CLIENT)) for request in sent)
        if route == CLIENT:
            assert [np.count_nonzero(array) for array in tokens] == [*mix.lengths]


def test_only_the_shipped_encoder_has_a_ragged_graph() -> None:
    assert [kind for kind in KINDS if RAGGED in routes(kind)] == [SHIPPED]


def test_a_gate_is_surely_held_only_by_the_whole_interval() -> None:
    gain = Interval(value=1.6, low=1.5, high=1.7, level=0.95, count=3, method="")
    low = replace(gain, low=1.4)
    assert [word(ratio, 1.5) for ratio in (gain, low, replace(gain, value=1.4), None)] == [
        *("held", "held, but not surely", "missed, but not surely", "not measured")
    ]
    assert word(replace(gain, low=1.2, value=1.3, high=1.4), 1.5) == "missed"


def record(rates: dict[str, float]) -> PaddedRecord:
    points = tuple(
        PaddedPoint(kind=kind, mix=mix.name, route=route, repeat=repeat, rows_per_s=rate, rows_per_execution=1.0)
        for kind in KINDS
        for mix in MIXES
        for route, rate in rates.items()
        for repeat in (1, 2, 3)
    )
    return PaddedRecord(**origin(("test",)), seed=1, seconds=1.0, errors={}, points=points)


def test_the_gates_ask_the_exported_configuration() -> None:
    held = record({SEPARATE: 100.0, CLIENT: 250.0, SERVER: 200.0, SPLIT: 310.0})
    assert all(ratio is not None and ratio.value >= least for _, ratio, least in gates(held))
    slower = replace(
        held,
        points=tuple(
            replace(each, rows_per_s=200.0) if (each.route, each.mix) == (SPLIT, "equal") else each
            for each in held.points
        ),
    )
    missed = [text for text, ratio, least in gates(slower) if ratio is None or ratio.value < least]
    assert len(missed) == len(KINDS)
    assert all("equal lengths" in text for text in missed)


def test_the_spread_is_that_of_the_route_whose_repeats_differ_most() -> None:
    same = record({SEPARATE: 100.0, SPLIT: 160.0})
    assert spread(same) == 0.0
    first, *others = same.points
    assert spread(replace(same, points=(replace(first, rows_per_s=150.0), *others))) == pytest.approx(0.5)


def test_encoders_that_were_not_asked_for_are_not_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = record({SEPARATE: 100.0, CLIENT: 250.0, SERVER: 200.0, SPLIT: 310.0})
    points = [each for each in whole.points if each.kind == "bert"]
    # Equal repeats have no interval.
    noisy = [replace(each, rows_per_s=each.rows_per_s + 0.1 * each.repeat) for each in points]
    only = replace(whole, points=tuple(noisy), errors={"bert": 0.0})
    file.write(only, tmp_path / "seed_1.json")
    call = ["--kind", "bert", "--repeats", "3", "--results", str(tmp_path)]
    assert main([*call, "--seconds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "bert: equal lengths, over client padding: x 1.24 (1.24 to 1.24), gate 0.97: held" in printed
    assert "fixed: long tail, over separate executions: gate 3.0: not measured" in printed
    assert main([*call, "--seconds", "2"]) == 1
    assert "--seconds 1" in capsys.readouterr().err
    file.write(replace(only, versions={}), tmp_path / "seed_1.json")
    assert main([*call, "--seconds", "1"]) == 1
    assert "other versions" in capsys.readouterr().err


@pytest.mark.server
def test_each_route_is_served_and_mixed_requests_answer_as_alone(tmp_path: Path) -> None:
    models = repository(tmp_path, "blind", 3)
    with launch(Settings(models=("padded", "split", "separate"), repository=models, arguments=PLAIN)) as server:
        error = checked(server, "blind", models / "padded" / "1" / "model.onnx", 3, count=60)
        assert 0 <= error <= 1e-4
        alone, padded = (point(server, "blind", MIXES[1], route, 1, 0.3) for route in (SEPARATE, SERVER))
    assert 1 <= alone.rows_per_execution < padded.rows_per_execution
    assert np.isfinite(padded.rows_per_s)
