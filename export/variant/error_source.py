"""Finds the node that does most of a variant's error.

Both graphs run the same rows with every tensor as an output. The suspects are the nodes after which the difference
grows most. Each of them is left in FP32 in turn: the one without which the answers differ least does most of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from export.graph.axis_proof import run, take
from export.graph.changed import CrashError, guarded_session_of
from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import label, with_all_outputs
from export.variant.precision import Conversion
from triton_batching.terminal import again

# All tensors of some rows fit into memory; suspects are tried with as many.
ROWS = 8
SUSPECTS = 5
# A node does most of the error if without it this share or less is left.
MOST = 0.5
# Quantisation computes these as part of the node before, so their error is that node's.
FUSED = ("Relu", "Clip")
# The value of a tensor after its quantisation; its own name may stand for the value before a fused Relu.
DEQUANTISED = "_DequantizeLinear_Output"


@dataclass(frozen=True, kw_only=True)
class ErrorSource:
    """The node, and the difference of the answers, in norm, with all nodes converted and with all but this one."""

    node: onnx.NodeProto
    before: float
    without: float

    def __str__(self) -> str:
        change = f"from {self.before:.1e} to {self.without:.1e} in norm, over {ROWS} rows"
        if self.without >= self.before:
            return f"The difference grows most at {label(self.node)}, but stays with that node alone in FP32"
        if self.without > MOST * self.before:
            return f"No node does most of it; the one that does most, {label(self.node)}, in FP32 lowers it {change}"
        command = again("--keep", self.node.name, repeatable=True)
        return f"{label(self.node)} does most of it: in FP32 it lowers it {change}. Leave it in FP32: {command}"


def error_source(
    conversion: Conversion, variant: onnx.ModelProto, rows: Rows, keep: Sequence[str], say: Callable[[str], None]
) -> ErrorSource | None:
    """The node that does most of the error; None if no tensor differs, or the graphs share none."""
    some = take(rows, 0, ROWS)
    try:
        differing = differences(conversion.model, conversion.computed(variant), some)
    except CrashError:
        return None
    suspects = _suspects(conversion.model, differing)
    expected = run(guarded_session_of(conversion.model), some)
    before = _error(expected, conversion, variant, some)
    sources = []
    for node in suspects[:SUSPECTS]:
        say(f"leaving {node.name} in FP32")
        without = _error(expected, conversion, conversion.converted([*keep, node.name]), some)
        sources.append(ErrorSource(node=node, before=before, without=without))
    return min(sources, key=lambda source: source.without, default=None)


def differences(original: onnx.ModelProto, variant: onnx.ModelProto, rows: Rows) -> dict[str, float]:
    """The difference of every tensor that both graphs have, as a part of its norm."""
    before, after = _tensors(original, rows), _tensors(variant, rows)
    values = {name: after.get(f"{name}{DEQUANTISED}", after.get(name)) for name in before}
    return {
        name: _difference(before[name], value)
        for name, value in values.items()
        if value is not None and before[name].shape == value.shape and before[name].dtype.kind == "f"
    }


def _suspects(model: onnx.ModelProto, differing: Mapping[str, float]) -> list[onnx.NodeProto]:
    """The nodes after which the difference grows, the most first."""
    makers = {name: node for node in model.graph.node for name in node.output}
    growth: dict[str, float] = {}
    for node in model.graph.node:
        first = makers.get(node.input[0]) if node.op_type in FUSED else None
        start = first or node
        after = max((differing[name] for name in node.output if name in differing), default=0.0)
        before = max((differing[name] for name in start.input if name in differing), default=0.0)
        growth[start.name] = after - before if after != before else 0.0
    grown = [node for node in model.graph.node if growth.get(node.name, 0) > 0]
    return sorted(grown, key=lambda node: -growth[node.name])


def _tensors(model: onnx.ModelProto, rows: Rows) -> dict[str, Array]:
    session = guarded_session_of(with_all_outputs(model), optimised=False)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, run(session, rows), strict=True))


def _difference(original: Array, variant: Array) -> float:
    before, after = original.astype(np.float64), variant.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = float(np.linalg.norm(after - before)) / (float(np.linalg.norm(before)) or 1.0)
    return difference if np.isfinite(difference) else float("inf")


def _error(expected: Sequence[Array], conversion: Conversion, variant: onnx.ModelProto, rows: Rows) -> float:
    answers = run(conversion.session(variant), rows)
    return max(_difference(old, new) for old, new in zip(expected, answers, strict=True))
