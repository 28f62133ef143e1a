import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from PIL import Image

from perf.records.measurement import Ceiling, Measurement
from perf.report.sweep.plots import batches, efficiency, gain, plots, save_png, stages, throughput
from tests.perf.report.sweep.test_summary import ceiling, only, record

SWEEP = [
    record(config_name, rate=rate * number, concurrency=number)
    for config_name, rate in (("baseline", 100.0), ("dynamic", 300.0))
    for number in (2, 4, 8)
]


def markers(entries: list[Measurement | Ceiling]) -> list[tuple[float, float, object]]:
    """Position and face of every single marker of the throughput figure."""
    found: list[tuple[float, float, object]] = []
    for line in throughput(only(*entries)).axes[0].lines:
        points = np.asarray(line.get_xydata())
        if line.get_marker() != "None" and len(points) == 1:
            found.append((float(points[0, 0]), float(points[0, 1]), line.get_markerfacecolor()))
    return found


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_every_point_is_drawn_and_marked_ones_are_hollow() -> None:
    found = markers([*SWEEP, record("dynamic", rate=2700, concurrency=9, failed=1)])
    assert sorted((x, y) for x, y, _ in found) == sorted(
        [(2, 200), (4, 400), (8, 800), (2, 600), (4, 1200), (8, 2400), (9, 2700)]
    )
    assert [x for x, _, face in found if face == "#fefefe"] == [9]


def test_axes_start_at_0_and_say_their_units() -> None:
    (axes,) = throughput(only(*SWEEP)).axes
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("requests in flight (concurrency)", "rows per second")


def test_the_ceiling_is_a_line_with_its_batch() -> None:
    axes = throughput(only(*SWEEP, ceiling(rates=(500.0,)))).axes[0]
    assert "onnxruntime alone, 8 rows together" in axes.get_legend_handles_labels()[1]


def test_figures_without_data_are_left_out() -> None:
    alone = only(record("dynamic"))
    assert (gain(alone), efficiency(alone)) == (None, None)
    assert [plot.name for plot in plots(alone)] == ["throughput", "latency", "batches", "stages"]
    assert gain(only(record())) is None
    assert stages(only(record(concurrency=2), record("dynamic"))) is None
    assert [plot.name for plot in plots(only(*SWEEP, ceiling()))] == [
        "throughput",
        "latency",
        "gain",
        "efficiency",
        "batches",
        "stages",
    ]


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


def test_svg_is_well_formed_deterministic_and_takes_the_colours_of_the_page() -> None:
    once, again = plots(only(*SWEEP), "a-"), plots(only(*reversed(SWEEP)), "a-")
    assert once == again
    for plot in once:
        assert ET.fromstring(plot.svg).tag.endswith("svg")
        assert "currentColor" in plot.svg
        assert "<style" not in plot.svg


def test_ids_are_unique_over_figures_and_prefixes_and_every_reference_is_met() -> None:
    pages = [plot.svg for prefix in ("1-", "2-") for plot in plots(only(*SWEEP), prefix)]
    ids = [name for svg in pages for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    used = {name for svg in pages for name in re.findall(r'(?:href="|url\()#([^")]+)', svg)}
    assert used
    assert used <= set(ids)


def test_png_files_are_written(tmp_path: Path) -> None:
    written = save_png(only(*SWEEP), tmp_path / "new", "m-")
    assert [path.name for path in written] == [f"m-{plot.name}.png" for plot in plots(only(*SWEEP))]
    assert Image.open(written[0]).size == (1240, 740)
