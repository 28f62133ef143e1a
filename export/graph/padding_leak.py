"""Finds the node that lets padding into the answer, and says in words how it does that."""

from collections.abc import Callable, Mapping, Sequence

import onnx

from export.graph.axis_proof import names_of, run, session_of
from export.graph.error_measure import LOOSER, Rounding, Scale
from export.graph.input_values import Array, Rows
from export.graph.onnx_graph import Net, attribute, label, with_all_outputs
from export.graph.rounding import changes


def find(model: onnx.ModelProto, requests: Sequence[Rows], longer: Rows, rounding: Rounding) -> str:
    """The first node whose output for the first request, padded to `longer`, differs where its inputs do not.

    Empty if none is seen. The other requests have the same length, and show what each tensor varies by.
    """
    open_model = with_all_outputs(model)
    session = session_of(open_model, optimised=False)
    names = names_of(session)
    every = [dict(zip(names, run(session, rows), strict=True)) for rows in requests]
    alone, padded = every[0], dict(zip(names, run(session, longer), strict=True))
    noise = dict(zip(names, changes(open_model, requests, optimised=False), strict=True))
    spoiled: set[str] = set()
    net = Net.of(model)
    for node in model.graph.node:
        outputs = [name for name in node.output if name in alone]
        wrong = [
            name for name in outputs if not _holds([each[name] for each in every], padded[name], rounding, noise[name])
        ]
        if wrong and not spoiled.intersection(node.input) and not _of_shapes(net, node, alone, padded):
            return f"{label(node)} {why(net, node, alone)}"
        spoiled.update(wrong if not _of_shapes(net, node, alone, padded) else ())
    return ""


def _holds(every: Sequence[Array], padded: Array, rounding: Rounding, noise: Array) -> bool:
    """Whether the padded tensor begins with that of the request alone, the first of `every`."""
    alone = every[0]
    if alone.ndim != padded.ndim or any(own > size for own, size in zip(alone.shape, padded.shape, strict=True)):
        return False
    same = [each for each in every if each.shape == alone.shape]
    errors = Scale(same, rounding, noise).errors(padded[tuple(map(slice, alone.shape))][None], alone[None])
    return bool((errors <= LOOSER * rounding.tolerance).all())


def _of_shapes(net: Net, node: onnx.NodeProto, alone: Mapping[str, Array], padded: Mapping[str, Array]) -> bool:
    """Whether a node's whole numbers are sizes, which are meant to grow with the length."""
    kinds = [alone[name].dtype.kind for name in node.output if name in alone]
    return all(kind in "iub" for kind in kinds) and all(
        alone[name].size <= 8 and padded[name].size <= 8 for name in node.output if name in alone
    )


def why(net: Net, node: onnx.NodeProto, alone: Mapping[str, Array]) -> str:
    """What the node does with padding: the end of a sentence that begins with its name."""
    kind = node.op_type
    if kind.startswith("Reduce") or kind in ("GlobalAveragePool", "GlobalMaxPool"):
        return (
            "takes padding into its sum, mean or maximum over the length. Multiply by the mask before it, and divide "
            "by the number of own elements"
        )
    return _WHY.get(kind, _unknown)(net, node)


def _softmax(net: Net, node: onnx.NodeProto) -> str:
    return "gives padding a share of the attention. Add -inf (or -1e9) to the scores of padding, from a mask, before it"


def _normalisation(net: Net, node: onnx.NodeProto) -> str:
    return "takes mean and variance over the length, padding too. Use a layer norm over the features"


def _window(net: Net, node: onnx.NodeProto) -> str:
    sizes = attribute(node, "kernel_shape", ())
    return (
        f"looks beyond the last own element (its window is {list(sizes)}): with padding it sees the fill value or its "
        "bias, alone the border. Multiply by the mask before each of them, or keep requests of equal length together"
    )


def _recurrent(net: Net, node: onnx.NodeProto) -> str:
    if attribute(node, "direction", b"forward") == b"forward":
        return (
            "carries its state through the padding. Give it sequence_lens, or read its output at the last own element"
        )
    return "begins its backward pass in the padding. Give it sequence_lens (torch: pack_padded_sequence)"


def _end(net: Net, node: onnx.NodeProto) -> str:
    return "counts from the end, which is padding. Pick by position from the start, or by the mask"


def _unknown(net: Net, node: onnx.NodeProto) -> str:
    return "answers differently for own elements if padding follows"


_WHY: Mapping[str, Callable[[Net, onnx.NodeProto], str]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("InstanceNormalization", "BatchNormalization", "GroupNormalization"), _normalisation),
    **dict.fromkeys(("LayerNormalization", "MeanVarianceNormalization", "LpNormalization"), _normalisation),
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"), _window),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("Gather", "GatherND", "Slice", "ReverseSequence", "TopK", "Split"), _end),
}
