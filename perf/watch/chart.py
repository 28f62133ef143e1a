"""A small line chart over time as inline SVG, with the fonts and colours of the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 120, 44, 8, 18


@dataclass(frozen=True, kw_only=True)
class Line:
    """A named series of (seconds since the epoch, value); `css` is its class in the page."""

    name: str
    points: Sequence[tuple[float, float]]
    css: str = "a"


def chart(title: str, lines: Sequence[Line], start_s: float, end_s: float, gap_s: float) -> Markup:
    """The lines from `start_s` to `end_s` on an axis from 0; a line is interrupted if points are over `gap_s` apart."""
    top = nice(max((value for line in lines for _, value in line.points), default=0.0))

    def place(point: tuple[float, float]) -> str:
        across = (point[0] - start_s) / max(end_s - start_s, 1e-9)
        down = (1 - point[1] / top) * (HEIGHT - TOP - BOTTOM)
        return f"{LEFT + across * (WIDTH - LEFT - 4):.1f},{TOP + down:.1f}"

    polylines = [
        f'<polyline class="{line.css}" points="{" ".join(map(place, part))}"/>'
        for line in lines
        for part in runs(line.points, gap_s)
    ]
    floor = HEIGHT - BOTTOM
    legend = " ".join(f'<tspan class="{line.css}">{escape(line.name)}</tspan>' for line in lines if line.name)
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{WIDTH - 4}"/>'
        f'<text x="{LEFT - 4}" y="{TOP + 8}" class="end">{top:g}</text><text x="{LEFT - 4}" y="{floor}" class="end">0'
        f'</text><text x="{LEFT}" y="{HEIGHT - 4}">{ago(end_s - start_s)}</text>'
        f'<text x="{WIDTH - 4}" y="{HEIGHT - 4}" class="end">now</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" class="middle">{legend}</text>{"".join(polylines)}</svg></figure>'
    )


def runs(points: Sequence[tuple[float, float]], gap_s: float) -> list[list[tuple[float, float]]]:
    """The points split at gaps; a single point becomes a short stroke."""
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if parts and point[0] - parts[-1][-1][0] <= gap_s:
            parts[-1].append(point)
        else:
            parts.append([point])
    return [part if len(part) > 1 else [part[0], (part[0][0] + gap_s / 3, part[0][1])] for part in parts]


def nice(value: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is at least `value`; 1 for values up to 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{value:.0f}") - 1 if value >= 1 else -len(f"{1 / value:.0f}"))
    return next(step * power for step in (1, 2, 5, 10, 20, 50, 100) if step * power >= value)


def ago(seconds: float) -> str:
    """A time before now in words."""
    return f"{seconds / 60:.0f} min ago" if seconds >= 120 else f"{seconds:.0f} s ago"
