import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from PIL import Image

from perf.records.measurement import Ceiling, Measurement
from perf.report.sweep.plots import Plot, batches, efficiency, gain, plots, save_png, stages, throughput
from tests.perf.report.sweep.test_summary import ceiling, only, record

SWEEP = [
    record(config_name, rate=rate * number, concurrency=number)
    for config_name, rate in (("baseline", 100.0), ("dynamic", 300.0))
    for number in (2, 4, 8)
]


@pytest.fixture(scope="module")
def drawn() -> Sequence[Plot]:
    """The six figures of the sweep with a ceiling."""
    return plots(only(*SWEEP, ceiling()), "a-")


def markers(records: list[Measurement | Ceiling]) -> list[tuple[float, float, object]]:
    """Position and face of every single marker of the throughput figure."""
    lines = [line for line in throughput(only(*records)).axes[0].lines if line.get_marker() != "None"]
    single = [(np.asarray(line.get_xydata()), line) for line in lines if len(np.asarray(line.get_xydata())) == 1]
    return [(float(points[0, 0]), float(points[0, 1]), line.get_markerfacecolor()) for points, line in single]


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_every_point_is_drawn_and_marked_ones_are_hollow() -> None:
    points = markers([*SWEEP, record("dynamic", rate=2700, concurrency=9, failed=1)])
    assert sorted((x, y) for x, y, _ in points) == sorted(
        [(2, 200), (4, 400), (8, 800), (2, 600), (4, 1200), (8, 2400), (9, 2700)]
    )
    assert [x for x, _, face in points if face == "#fefefe"] == [9]


def test_axes_start_at_0_and_say_their_units() -> None:
    (axes,) = throughput(only(*SWEEP)).axes
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("requests in flight (concurrency)", "rows per second")


def test_the_ceiling_is_a_line_with_its_batch() -> None:
    axes = throughput(only(*SWEEP, ceiling(rates=(500.0,)))).axes[0]
    assert "onnxruntime alone, 8 rows together" in axes.get_legend_handles_labels()[1]


def test_figures_without_data_are_left_out(drawn: Sequence[Plot]) -> None:
    alone = only(record("dynamic"))
    assert (gain(alone), efficiency(alone)) == (None, None)
    assert [plot.name for plot in plots(alone)] == ["throughput", "latency", "batches", "stages"]
    assert gain(only(record())) is None
    assert stages(only(record(concurrency=2), record("dynamic"))) is None
    assert [plot.name for plot in drawn] == ["throughput", "latency", "gain", "efficiency", "batches", "stages"]


def test_batches_show_the_share_of_rows() -> None:
    figure = batches(only(record(batches={2: 30, 8: 5})))
    assert figure is not None
    # 60 rows ran in twos and 40 in eights
    assert [bar.get_height() for bar in bars(figure.axes[0])] == [60, 40]


def test_stages_add_up_at_the_lowest_and_highest_common_concurrency() -> None:
    figure = stages(only(*SWEEP))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["concurrency 2", "concurrency 8"]
    # two configurations x seven stages; 10 + 20 + 7 + 2 + 30 + 4 + 1 microseconds
    widths = [bar.get_width() for bar in bars(figure.axes[0])]
    assert len(widths) == 14
    assert sum(widths) == pytest.approx(2 * 0.074)


def test_a_point_without_summary_is_drawn_without_latency() -> None:
    assert len(plots(only(record(summary=False)))) == 4


def test_svg_is_well_formed_deterministic_and_takes_the_colours_of_the_page(drawn: Sequence[Plot]) -> None:
    assert drawn == plots(only(*reversed(SWEEP), ceiling()), "a-")
    for plot in drawn:
        assert ET.fromstring(plot.svg).tag.endswith("svg")
        assert "currentColor" in plot.svg
        assert "<style" not in plot.svg


def test_ids_are_unique_over_figures_and_prefixes_and_every_reference_is_met(drawn: Sequence[Plot]) -> None:
    pages = [plot.svg for plot in (*drawn, *plots(only(record()), "b-"))]
    ids = [name for svg in pages for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    references = {name for svg in pages for name in re.findall(r'(?:href="|url\()#([^")]+)', svg)}
    assert references
    assert references <= set(ids)


def test_png_files_are_written(drawn: Sequence[Plot], tmp_path: Path) -> None:
    paths = save_png(only(*SWEEP, ceiling()), tmp_path / "new", "m-")
    assert [path.name for path in paths] == [f"m-{plot.name}.png" for plot in drawn]
    assert Image.open(paths[0]).size == (1240, 740)
