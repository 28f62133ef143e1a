"""What a figure shows: its layers, and the rows of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from perf.report.figure import Figure


def layers(figure: Figure) -> Sequence[Mapping[str, Any]]:
    """All layers of a figure that have an encoding, with its rows, and the encoding that it inherits."""
    whole = figure.specification
    found = _layers(whole, {}, {})
    return [{**layer, "rows": whole["datasets"][layer["data"]["name"]]} for layer in found]


def rows(figure: Figure, mark: str) -> list[dict[str, Any]]:
    """The rows of all layers with this mark."""
    found = [layer for layer in layers(figure) if _mark(layer) == mark]
    return [row for layer in found for row in layer["rows"]]


def _mark(layer: Mapping[str, Any]) -> str:
    mark = layer["mark"]
    return str(mark if isinstance(mark, str) else mark["type"])


def _layers(part: Mapping[str, Any], data: Any, encoding: Mapping[str, Any]) -> list[dict[str, Any]]:
    data, encoding = part.get("data", data), {**encoding, **part.get("encoding", {})}
    if "layer" in part:
        return [layer for each in part["layer"] for layer in _layers(each, data, encoding)]
    return [{**part, "data": data, "encoding": encoding}]
