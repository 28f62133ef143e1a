from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from charts import layers, rows
from PIL import Image

from perf.report.figure import Figure
from perf.report.sweep.figures import figures, palette_of, save_png
from perf.report.sweep.summary import Comparison
from tests.perf.report.sweep.test_summary import ceiling, only, record

SWEEP = [
    record(config_name, rate=rate * number, concurrency=number)
    for config_name, rate in (("baseline", 100.0), ("dynamic", 300.0))
    for number in (2, 4, 8)
]
NAMES = ["tradeoff", "throughput", "latency", "gain", "efficiency", "batches", "stages"]


def drawn(comparison: Comparison) -> Mapping[str, Figure]:
    return {figure.name: figure for figure in figures(comparison, palette_of([comparison]))}


def places(points: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    return sorted((row["x"], row["y"]) for row in points)


def test_every_point_is_drawn_and_marked_ones_are_hollow() -> None:
    found = drawn(only(*SWEEP, record("dynamic", rate=2700, concurrency=9, failed=1)))
    points = rows(found["throughput"], "point")
    assert places(points) == [(2, 200), (2, 600), (4, 400), (4, 1200), (8, 800), (8, 2400), (9, 2700)]
    assert [row["x"] for row in points if row["marked"]] == [9]
    # The p95 is 1.2 times the mean, which is concurrency x 2 rows over the throughput: 24 ms or 8 ms.
    assert places(rows(found["tradeoff"], "point"))[:2] == [(200, 24), (400, 24)]


def test_a_reader_sees_the_load_and_all_figures_of_a_point() -> None:
    twice = [record("dynamic", rate=rate, concurrency=2, repeat=n) for n, rate in enumerate((600.0, 610.0), 1)]
    comparison = only(*twice)
    (point,) = rows(drawn(comparison)["throughput"], "point")
    interval = comparison.rows[0].throughput
    assert interval is not None
    assert point["rows/s"] == f"605.0 (95 %: {interval.low:,.1f} to {interval.high:,.1f})"
    assert (point["configuration"], point["load"]) == ("dynamic", "2 requests in flight, 2 rows each")
    assert point["p95"] == "7.9 ms (7.9 to 8.0 over the repeats)"
    (shown,) = [layer for layer in layers(drawn(comparison)["throughput"]) if "tooltip" in layer["encoding"]]
    assert [each["field"] for each in shown["encoding"]["tooltip"]][:4] == ["configuration", "load", "rows/s", "p50"]


def test_axes_start_at_0_and_say_their_units() -> None:
    first = layers(drawn(only(*SWEEP))["throughput"])[0]["encoding"]
    assert (first["x"]["title"], first["y"]["title"]) == ("requests in flight (concurrency)", "rows per second")
    assert first["y"]["scale"]["zero"]


def test_the_ceiling_is_a_line_with_its_batch() -> None:
    (row,) = rows(drawn(only(*SWEEP, ceiling(rates=(500.0,))))["throughput"], "text")
    assert row == {"at": 500.0, "text": "onnxruntime alone, 8 rows together"}


def test_figures_without_data_are_left_out() -> None:
    assert list(drawn(only(record("dynamic")))) == ["tradeoff", "throughput", "latency", "batches", "stages"]
    assert list(drawn(only(record(concurrency=2), record("dynamic")))) == ["tradeoff", "throughput", "latency"]
    assert list(drawn(only(record(summary=False)))) == ["throughput", "batches", "stages"]
    assert list(drawn(only(*SWEEP, ceiling()))) == NAMES


def test_batches_show_the_share_of_rows() -> None:
    # 60 rows ran in twos and 40 in eights
    assert [row["share"] for row in rows(drawn(only(record(batches={2: 30, 8: 5})))["batches"], "bar")] == [60, 40]


def test_stages_add_up_at_the_lowest_and_highest_common_concurrency() -> None:
    parts = rows(drawn(only(*SWEEP))["stages"], "bar")
    assert list(dict.fromkeys(row["bar"] for row in parts)) == [
        *("baseline, 2 in flight", "dynamic, 2 in flight", "baseline, 8 in flight", "dynamic, 8 in flight")
    ]
    # two configurations x two loads x seven stages; 10 + 20 + 7 + 2 + 30 + 4 + 1 microseconds
    assert len(parts) == 28
    assert sum(row["ms"] for row in parts) == pytest.approx(4 * 0.074)


def test_equal_records_give_equal_figures() -> None:
    once, again = drawn(only(*SWEEP, ceiling())), drawn(only(*reversed(SWEEP), ceiling()))
    assert [figure.json for figure in once.values()] == [figure.json for figure in again.values()]


def test_png_files_are_written(tmp_path: Path) -> None:
    comparison = only(record(), record("dynamic", rate=300.0))
    paths = save_png(comparison, tmp_path / "new", "m-")
    assert [path.name for path in paths] == [f"m-{name}.png" for name in drawn(comparison)]
    assert Image.open(paths[0]).width == 900
