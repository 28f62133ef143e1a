from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from charts import rows
from PIL import Image

from perf.report.figure import Figure
from perf.report.sweep.figures import figures, palette_of, save_png
from perf.report.sweep.summary import Comparison
from tests.perf.report.sweep.test_summary import only, record

SWEEP = [
    record(config_name, rate=rate * number, concurrency=number)
    for config_name, rate in (("baseline", 100.0), ("dynamic", 300.0))
    for number in (2, 4, 8)
]


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


def test_stages_add_up_at_the_lowest_and_highest_common_concurrency() -> None:
    parts = rows(drawn(only(*SWEEP))["stages"], "bar")
    assert list(dict.fromkeys(row["bar"] for row in parts)) == [
        *("baseline, 2 in flight", "dynamic, 2 in flight", "baseline, 8 in flight", "dynamic, 8 in flight")
    ]
    # two configurations x two loads x seven stages; 10 + 20 + 7 + 2 + 30 + 4 + 1 microseconds
    assert len(parts) == 28
    assert sum(row["ms"] for row in parts) == pytest.approx(4 * 0.074)


@pytest.mark.slow
def test_png_files_are_written(tmp_path: Path) -> None:
    comparison = only(record(), record("dynamic", rate=300.0))
    paths = save_png(comparison, tmp_path / "new", "m-")
    assert [path.name for path in paths] == [f"m-{name}.png" for name in drawn(comparison)]
    assert Image.open(paths[0]).width == 900
