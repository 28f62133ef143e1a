"""The texts of values on the page: numbers with units and significant digits, and counts with nouns."""

import math


def ms(milliseconds: float) -> str:
    """`0.42 ms`, `12.3 ms`, `1,204 ms`; `never` for infinity."""
    return f"{number(milliseconds)} ms" if math.isfinite(milliseconds) else "never"


def number(value: float) -> str:
    """A number with three digits, or with all digits before the point."""
    if not math.isfinite(value):
        return "never" if value > 0 else "none"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def rate(per_s: float) -> str:
    """`1,204 rows/s`."""
    return f"{number(per_s)} rows/s"


def plain_ms(milliseconds: float) -> str:
    """A given latency as it was written: `40 ms`, `12.5 ms`."""
    return f"{milliseconds:g} ms"


def percent(share: float) -> str:
    """`0.0123` as `1.2 %`."""
    return f"{100 * share:.1f} %"


def change(ratio: float) -> str:
    """`1.13` as `+13.0 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


def count(of: int, noun: str) -> str:
    """`1 request`, `2,000 requests`."""
    return f"{of:,} {noun}{'' if of == 1 else 's'}"


def duration(seconds: float) -> str:
    """`48 s`, `3 min 12 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"
