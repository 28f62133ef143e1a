"""Converts a graph to an older opset, so that an older server reads it."""

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import version_converter

from export.graph import rewrite
from export.graph.axis_proof import choose_rows, difference, run, session_of, tolerance_of
from export.graph.input_values import Range, ranges
from export.graph.source import Source
from triton_batching.terminal import Mistake

# The newest that onnxruntime 1.19 reads, which NVIDIA's release 24.10 has.
IR = 10


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators in a graph."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def lowered(source: Source, version: int, chosen: Mapping[str, Range]) -> Source:
    """The graph in this opset and an IR version of its time, if it answers as before; raises `Mistake`.

    `chosen` are the user's ranges of values. A graph that is old enough stays as it is.
    """
    if opset(source.model) <= version and source.model.ir_version <= IR:
        return source
    where = f"{source.origin}: --opset {version}"
    made = onnx.ModelProto()
    made.CopyFrom(source.model)
    if opset(source.model) > version:
        try:
            made = version_converter.convert_version(source.model, version)
        except Exception as error:  # onnx's own, in C++
            reason = " ".join(str(error).split())[:200]
            raise Mistake(
                f"{where}: onnx cannot convert it ({reason}). Export it with opset_version={version}."
            ) from error
    made.ir_version = min(made.ir_version, IR)
    before, after = session_of(source.model, user_path=source.user_path), session_of(made, user_path=source.user_path)
    count = rewrite.fixed_rows(source.model) or 1
    valid = ranges(source.model, chosen, source.examples)
    rows, _ = choose_rows(before, source.model, valid, rows=count, trying=count)
    worst = max(difference(new, old) for new, old in zip(run(after, rows), run(before, rows), strict=True))
    if not worst <= tolerance_of(source.model):
        raise Mistake(
            f"{where}: the converted graph answers differently, by {worst:.1e} of the largest value. Export it with "
            f"opset_version={version}."
        )
    return replace(source, model=made)
