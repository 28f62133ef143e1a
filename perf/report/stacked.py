"""Bars of parts that add up, one bar per name."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from perf.report.drawing import plain


def stacked(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """The first name on top; `parts` holds a value per name, in the order in which they are laid end to end."""
    left = [0.0] * len(names)
    for label, values in parts.items():
        axes.barh(names, values, left=left, height=0.62, color=colours[label], label=label)
        left = [start + value for start, value in zip(left, values, strict=True)]
    plain(axes, "x")
    axes.set_xlim(0, max(left) * 1.04 or 1)
    axes.invert_yaxis()
