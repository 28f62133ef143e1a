"""What the drop-in backend's modules get without a server: a graph's tensors, a configuration, and their refusals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Node:
    """An input or output of a graph, as onnxruntime describes it."""

    name: str
    shape: list[int | str | None]
    type: str = "tensor(float)"


def tensor(name: str, dims: Sequence[int], data_type: str = "FP32", **changes: Any) -> dict[str, Any]:
    """An input or output of a configuration."""
    return {"name": name, "data_type": f"TYPE_{data_type}", "dims": list(dims)} | changes


def config(parameters: Mapping[str, str] | None = None, /, **changes: Any) -> dict[str, Any]:
    """Triton's JSON of a configuration."""
    values = {key: {"string_value": value} for key, value in (parameters or {}).items()}
    return {"name": "m", "max_batch_size": 8, "input": [], "output": [], "parameters": values} | changes


def refusals(check: Callable[..., object], cases: Mapping[str, Sequence[Any]]) -> str:
    """The error that `check` raises for the arguments of each case, as text for a golden file."""
    said = []
    for case, arguments in cases.items():
        try:
            check(*arguments)
        except ValueError as error:
            said.append(f"{case}\n    {type(error).__name__}: {error}\n")
        else:
            raise AssertionError(f"accepted: {case}")
    return "".join(said)
