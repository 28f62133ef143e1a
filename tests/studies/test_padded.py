"""The experiment on padded requests: its encoders, its routes, its gates, and its answers on a server."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from sleepers import PLAIN

from perf.studies.experiment import origin
from perf.studies.padded import encoders
from perf.studies.padded.__main__ import (
    CLIENT,
    MIXES,
    ROUTES,
    SEPARATE,
    SERVER,
    SPLIT,
    PaddedPoint,
    PaddedRecord,
    checked,
    gates,
    point,
    repository,
    requests,
)
from serve.launcher import Settings, launch


@pytest.mark.parametrize("kind", encoders.KINDS)
def test_a_seed_makes_the_same_encoder_again(kind: str, tmp_path: Path) -> None:
    first, again, other = (
        encoders.write(tmp_path / f"{name}.onnx", kind, seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"), full_check=True)


def test_masks_are_sent_only_without_the_servers_padding() -> None:
    mix = MIXES[-1]
    for route in ROUTES:
        sent = requests(mix, route)
        lengths = [request["tokens"].shape[1] for request in sent]
        assert lengths == ([mix.longest] * len(sent) if route == CLIENT else [*mix.lengths])
        assert all(("mask" in request) == (route in (SEPARATE, CLIENT)) for request in sent)
        if route == CLIENT:
            assert [int(request["mask"].sum()) for request in sent] == [*mix.lengths]


def record(rates: dict[str, float]) -> PaddedRecord:
    points = tuple(
        PaddedPoint(kind=kind, mix=mix.name, route=route, repeat=repeat, rows_per_s=rate, rows_per_execution=1.0)
        for kind in encoders.KINDS
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
    assert len(missed) == len(encoders.KINDS)
    assert all("equal lengths" in text for text in missed)


@pytest.mark.server
def test_each_route_is_served_and_mixed_requests_answer_as_alone(tmp_path: Path) -> None:
    models = repository(tmp_path, "blind", 3)
    with launch(Settings(models=("padded", "split", "separate"), repository=models, arguments=PLAIN)) as server:
        error = checked(server, models / "padded" / "1" / "model.onnx", 3, count=60)
        assert 0 <= error <= 1e-4
        alone, padded = (point(server, "blind", MIXES[1], route, 1, 0.3) for route in (SEPARATE, SERVER))
    assert alone.rows_per_execution < 2 < padded.rows_per_execution
    assert np.isfinite(padded.rows_per_s)
