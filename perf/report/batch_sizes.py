"""A chart of executed batch sizes: the share of the rows by the size of their execution."""

from collections.abc import Mapping, Sequence

import altair as alt

from perf.report.figure import Chart, Palette, Row, hover, lit, source

HOVER = ("configuration", "batch size", "share of the rows", "executions")


def batch_sizes(executed: Mapping[str, Mapping[int, int]], palette: Palette, title: str) -> Chart:
    """A bar per configuration and size, of executions by size."""
    rows = [row for name, sizes in executed.items() for row in _rows(name, sizes)]
    sizes = sorted({size for each in executed.values() for size in each})
    base = alt.Chart(source(rows)).encode(
        x=alt.X("size:O", title=title, sort=sizes, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        xOffset=alt.XOffset("configuration:N", sort=list(executed)),
        tooltip=hover(*HOVER),
    )
    y = alt.Y("share:Q", title="% of the rows", axis=alt.Axis(tickCount=5))
    bars: Chart = base.mark_bar().encode(y=y, color=palette.colour, opacity=lit())
    return bars.properties(height=280)


def _rows(name: str, sizes: Mapping[int, int]) -> Sequence[Row]:
    return [
        {
            "configuration": name,
            "size": size,
            "share": share,
            "batch size": f"{size} rows",
            "share of the rows": f"{share:.1f} %",
            "executions": f"{sizes[size]:,}",
        }
        for size, share in row_shares(sizes).items()
    ]


def row_shares(batches: Mapping[int, int]) -> dict[int, float]:
    """The percentage of all rows by the batch size of their execution."""
    total = sum(size * count for size, count in batches.items())
    return {size: 100 * size * count / total for size, count in sorted(batches.items())}
