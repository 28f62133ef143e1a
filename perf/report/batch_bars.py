"""The figure of executed batch sizes: what share of the rows ran in executions of which size."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from perf.report.drawing import INK, NARROW, plain


def batch_bars(
    panels: Sequence[tuple[str, Mapping[int, int], str]],
    label: str,
    predicted: Sequence[Mapping[int, int] | None] = (),
) -> Figure:
    """One panel per title, with its executions by rows and its colour; a line over the bars is what was `predicted`."""
    figure = Figure(figsize=NARROW, layout="constrained")
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    expected = [*predicted, *[None] * (len(panels) - len(predicted))]
    largest = max(size for sizes in (*(batches for _, batches, _ in panels), *filter(None, expected)) for size in sizes)
    for axes, (title, batches, colour), other in zip(rows, panels, expected, strict=True):
        shares = row_shares(batches)
        axes.bar(list(shares), list(shares.values()), width=max(0.8, largest / 90), color=colour)
        axes.set_title(title, loc="left", fontsize=11, pad=3)
        plain(axes)
        top = max(shares.values())
        if other:
            line = row_shares(other)
            axes.plot(
                list(line), list(line.values()), "_", color=INK, markersize=max(4, 260 / largest), label="predicted"
            )
            top = max(top, *line.values())
        axes.set(xlim=(0.25, largest + 0.75), ylim=(0, min(105, 1.2 * top)))
        axes.yaxis.set_major_locator(MultipleLocator(50) if top > 50 else MaxNLocator(3, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    rows[-1].set_xlabel(label)
    figure.supylabel("% of rows", fontsize=11)
    return figure


def row_shares(batches: Mapping[int, int]) -> dict[int, float]:
    """Percent of all rows by the size of the execution that they were in."""
    total = sum(size * count for size, count in batches.items())
    return {size: 100 * size * count / total for size, count in sorted(batches.items())}
