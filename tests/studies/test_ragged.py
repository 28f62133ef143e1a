"""Mixes of lengths, the padding that they cost, and the comparison of routes out of records."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from export.__main__ import main as export
from export.repository import REPOSITORY, read_config
from perf.measure import ceiling_run as limit
from perf.records.measurement import AnalyzerResult, AnalyzerWindow, Measurement, Store, read
from perf.studies.ragged.__main__ import main, requests
from perf.studies.ragged.length_mix import LengthMix, cheapest, equal, long_tail, uniform, wasted, whole
from perf.studies.ragged.padding_share import PaddingShare
from perf.studies.ragged.table import MIXES, ROUTES, SEPARATE, RaggedExperiment, folder, rows_of, splits, table
from serve.management.statistics import Counters
from tests.perf.records.test_measurement import RECORD, counters

TWO = LengthMix(name="two", lengths=(2, 4))
CROPS = REPOSITORY / "text_recognition_ragged"


def test_padding_of_known_batches() -> None:
    assert wasted(TWO, {1: 10}) == 0
    assert wasted(TWO, {2: 3}) == pytest.approx(1 - 6 / 8)
    assert wasted(TWO, {4: 1}) == pytest.approx(1 - 12 / 16)  # both come round twice
    assert wasted(TWO, {1: 2, 2: 1}) == pytest.approx(1 - 12 / 14, abs=0.02)  # a lone one is 2 or 4 long
    assert wasted(TWO, {2: 3}, lambda lengths: [[length] for length in lengths]) == 0
    assert wasted(TWO, {}) == 0
    assert wasted(equal(7), {5: 4, 61: 1}) == 0


def test_the_cheapest_split_is_the_best_of_all_partitions() -> None:
    rng = np.random.default_rng(0)

    def cost(parts: list[list[int]], run: float) -> float:
        return sum(run + len(part) * max(part) for part in parts)

    for _ in range(20):
        lengths = rng.integers(1, 40, 5).tolist()
        run = float(rng.uniform(0, 60))
        split = [list(part) for part in cheapest(run)(lengths)]
        assert sorted(itertools.chain(*split)) == sorted(lengths)
        # Each number says which part the length at its place belongs to: all partitions there are.
        partitions = (
            [[length for length, at in zip(lengths, parts, strict=True) if at == part] for part in set(parts)]
            for parts in itertools.product(range(5), repeat=5)
        )
        assert cost(split, run) == pytest.approx(min(cost(parts, run) for parts in partitions))


def test_a_split_is_what_the_configuration_says() -> None:
    dynamic, learned, elements = (
        read_config(CROPS / "configs" / f"{name}.pbtxt")
        for name in ("dynamic", "padding_budget", "padding_budget_elements")
    )
    assert splits(dynamic) is whole
    assert splits(learned) is None
    split = splits(elements)
    assert split is not None
    # 3200 elements are 100 columns of 32 pixels: 90 columns of padding are cheaper than a run, 110 are not.
    assert split([10, 100]) == [[10, 100]]
    assert split([10, 120]) == [[10], [120]]


def test_mixes_are_seeded_and_within_their_bounds() -> None:
    for mixes in MIXES.values():
        assert {"equal", "uniform", "long tail"} <= {mix.name for mix in mixes}
        assert {len(mix.lengths) for mix in mixes} == {61}
    assert uniform(2, 16) == uniform(2, 16)
    assert (min(uniform(2, 16).lengths), max(uniform(2, 16).lengths)) == (2, 16)
    tail = long_tail(12, 2, 256)
    assert 8 <= np.median(tail.lengths) <= 16
    assert tail.longest > 5 * np.median(tail.lengths)


def test_a_client_pads_to_the_longest_of_the_mix() -> None:
    config = read_config(CROPS / "config.pbtxt")
    plain, padded = (requests(config, TWO, pads=pads) for pads in (False, True))
    assert [row["CROP"].shape for row in plain] == [(1, 32, 2), (1, 32, 4)]
    assert [row["CROP"].shape for row in padded] == [(1, 32, 4), (1, 32, 4)]
    assert np.array_equal(padded[0]["CROP"][:, :, :2], plain[0]["CROP"])
    assert not padded[0]["CROP"][:, :, 2:].any()


def record(rows_per_s: float, batches: dict[int, int], repeat: int) -> Measurement:
    rows = sum(size * count for size, count in batches.items())
    counted: Counters = dataclasses.replace(
        counters(rows), executions=sum(batches.values()), batches=batches, batches_ns=batches
    )
    windows = (AnalyzerWindow(throughput_rows_per_s=rows_per_s, latency_us=1.0),) * 3
    # Little's law holds: 4 in flight at this rate.
    mean = 4 / rows_per_s * 1e6
    return dataclasses.replace(
        RECORD,
        point=dataclasses.replace(RECORD.point, repeat=repeat),
        measured=AnalyzerResult(
            window_ms=1000, windows=windows, throughput_rows_per_s=rows_per_s, mean_us=mean, p95_us=2 * mean
        ),
        before=dataclasses.replace(counters(0), batches={}, batches_ns={}),
        after=counted,
    )


def test_the_table_is_made_of_records(tmp_path: Path) -> None:
    """Two repeats of three routes; ratios are taken repeat by repeat."""
    separate, padding, ragged = ROUTES[:3]
    study = RaggedExperiment(
        model="text_recognition_ragged", mixes=(TWO,), routes=ROUTES, concurrency=4, repeats=2, window_ms=1000
    )
    for route, rates, batches in (
        (separate, (100.0, 50.0), {1: 10}),
        (padding, (150.0, 100.0), {2: 5}),
        (ragged, (400.0, 150.0), {2: 5}),
    ):
        store = Store(folder(tmp_path, study.model, TWO, route))
        for repeat, rate in enumerate(rates, start=1):
            store.add(record(rate, batches, repeat))
    rows_by_route = {row.route: row for row in rows_of(study, tmp_path)}
    assert list(rows_by_route) == [separate.name, padding.name, ragged.name]
    row = rows_by_route[ragged.name]
    assert row.rows_per_s == 275
    assert row.to_separate is not None
    assert row.to_separate.value == pytest.approx(math.sqrt(4 * 3))
    assert [row.to_ragged and row.to_ragged.value for row in rows_by_route.values()] == pytest.approx(
        [math.sqrt(100 / 400 * 50 / 150), math.sqrt(150 / 400 * 100 / 150), 1]
    )
    assert row.rows_per_execution == 2
    assert row.infer_us_per_row == 1e-3 / 2  # executions of 1 ns, here
    assert [row.wasted for row in rows_by_route.values()] == [0, pytest.approx(0.25), pytest.approx(0.25)]
    # Repeats that differ are no fault.
    assert row.marks == ()
    assert table(study, list(rows_by_route.values())).row_count == 3


def test_what_the_backend_counted_is_shown(tmp_path: Path) -> None:
    route = ROUTES[3]
    study = RaggedExperiment(
        model="ragged_encoder", mixes=(TWO,), routes=(route,), concurrency=4, repeats=3, window_ms=1000
    )
    store = Store(folder(tmp_path, study.model, TWO, route))
    for repeat, share in enumerate((0.1, 0.3, 0.2), start=1):
        store.add(dataclasses.replace(record(100.0, {2: 5}, repeat), wasted=share))
    (row,) = rows_of(study, tmp_path)
    assert row.wasted == 0.2
    store.add(record(100.0, {2: 5}, 4))  # one that was not counted: the backend alone knows how it split
    (row,) = rows_of(study, tmp_path)
    assert row.wasted is None


def test_the_share_of_padding_is_read_from_the_metrics() -> None:
    name = "onnxruntime_ragged_elements_total"
    text = f"""# TYPE {name} counter
{name}{{kind="own",model="a",version="1"}} 30
{name}{{kind="own",model="a",version="2"}} 30
{name}{{kind="computed",model="a",version="1"}} 1.5e+2
{name}{{kind="computed",model="b",version="1"}} 7
"""
    assert PaddingShare.parse(text, "a") == PaddingShare(own=60, computed=150)
    assert PaddingShare.parse(text, "a").wasted == pytest.approx(0.6)
    assert (PaddingShare.parse(text, "c") - PaddingShare.parse("", "c")).wasted is None


def test_a_ragged_model_has_no_ceiling_of_its_own() -> None:
    with pytest.raises(
        limit.CeilingError, match=r"'ragged_encoder' is ragged.* Measure it: python -m perf.studies.ragged"
    ):
        limit.plan("ragged_encoder")


@pytest.mark.server
def test_a_measured_point_is_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(["ragged_encoder"]) == 0
    arguments = ["ragged_encoder", "--mix", "uniform", "--repeats", "1", "--window-ms", "150", "--concurrency", "8"]
    assert main([*arguments, "--results", str(tmp_path)]) == 0
    assert "separate executions" in capsys.readouterr().out
    records = {path.name: list(read(path)) for path in (tmp_path / "ragged_encoder" / "uniform").iterdir()}
    assert {name: len(entries) for name, entries in records.items()} == {
        SEPARATE.slug: 1,
        "client_padding": 1,
        "ragged": 1,
        "ragged_padding_budget": 1,
    }
    for name, (measurement,) in records.items():
        assert isinstance(measurement, Measurement)
        assert measurement.counters.failed_requests == 0
        assert (measurement.counters.rows_per_execution == 1) == (name == SEPARATE.slug)
        assert (measurement.wasted is not None) == (name == "ragged_padding_budget")
    assert main([*arguments, "--results", str(tmp_path)]) == 0
    assert {path.name: list(read(path)) for path in (tmp_path / "ragged_encoder" / "uniform").iterdir()} == records


def test_a_model_without_mixes_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranker"]) == 2
    message = "'ranker' has no mixes of lengths. Known: ragged_encoder, text_recognition_ragged."
    assert message in capsys.readouterr().err
