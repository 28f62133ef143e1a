"""What a figure shows: the rows of its marks."""

from collections.abc import Iterator, Mapping
from typing import Any

from perf.report.figure import Figure


def rows(figure: Figure, mark: str) -> list[dict[str, Any]]:
    """The rows of all layers with this mark."""
    whole = figure.specification
    return [row for name in _layers(whole, mark, "") for row in whole["datasets"][name]]


def _layers(part: Mapping[str, Any], mark: str, data: str) -> Iterator[str]:
    """The data of each layer with this mark; a layer inherits that of the one around it."""
    data = part.get("data", {}).get("name", data)
    for each in part.get("layer", ()):
        yield from _layers(each, mark, data)
    drawn = part.get("mark")
    if mark == (drawn["type"] if isinstance(drawn, dict) else drawn):
        yield data
