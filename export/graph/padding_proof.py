"""Proves that a request padded to a longer one answers as it does alone, and finds how outputs follow its length.

The open dimensions after the batch axis are the lengths. An input of shape [batch, length] that is called
attention_mask, or is named with --mask, is a mask: 1 for own elements, 0 for padding. Others are filled with a value.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

from export.graph.axis_proof import difference, onnxruntime_errors, run, session_of
from export.graph.input_values import Array, Range, Rows
from export.graph.padding_axes import Axis, PaddingError, Variation, written
from export.graph.padding_cuts import Cut, cuts_of

# Shares of the proved length that shorter requests have, and how much longer they are padded.
SHARES, BEYOND = (0.2, 0.45, 0.7, 0.95, 1.0), (1.0, 1.5, 2.0)
LEAST_LENGTHS = 3


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What varies, with what it is filled, which masks are made, how outputs are cut, and what was tried.

    `lengths` are those of the requests, `error` the largest difference of a padded answer from that of the request
    alone, divided by the output's largest value.
    """

    fills: Mapping[Axis, float]
    masks: Mapping[str, Axis]
    cuts: Mapping[str, Sequence[Cut]]
    lengths: tuple[int, ...]
    error: float

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of config.pbtxt."""
        found = {"pad": ", ".join(f"{axis}={written(fill)}" for axis, fill in self.fills.items())}
        if self.masks:
            found["pad_mask"] = ", ".join(f"{name}={axis}" for name, axis in self.masks.items())
        if cuts := [f"{name}[{cut.index}]={cut}" for name, each in self.cuts.items() for cut in each]:
            found["cut"] = ", ".join(cuts)
        return found


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A request that ran, the same padded, and the outputs of both."""

    lengths: Mapping[str, int]
    request: Rows
    longer: Rows
    alone: Sequence[Array]
    padded: Sequence[Array]


def prove(
    model: onnx.ModelProto, valid: Mapping[str, Range], *, length: int, tolerance: float, variation: Variation
) -> Padding:
    """Compare requests of several lengths alone and padded; `length` is one that runs.

    Raises `PaddingError` with what differs, and the node that lets padding into the answer.
    """
    session = session_of(model)
    pairs = list(_pairs(session, model, valid, variation, length))
    if len({tuple(pair.lengths.values()) for pair in pairs}) < LEAST_LENGTHS:
        if len(variation.sizes) > 1 and _runs_only_equal(session, model, valid, variation, length):
            raise PaddingError(
                f"requests run only if {', '.join(variation.sizes)} are equal. Export these dimensions with one name, "
                'as in dynamic_axes={"tokens": {1: "length"}, "mask": {1: "length"}}.'
            )
        raise PaddingError(
            f"of the lengths near {length} fewer than {LEAST_LENGTHS} run, so requests cannot vary in length. Export "
            "it with that axis dynamic, or name valid values with --range."
        )
    names = [output.name for output in session.get_outputs()]
    for name, output in itertools.chain.from_iterable(zip(names, pair.alone, strict=True) for pair in pairs):
        if output.dtype.kind == "f" and not np.isfinite(output).all():
            raise PaddingError(
                f'output "{name}" of a request alone has NaN or infinity, so a mask may have the opposite meaning, or '
                "the values are not valid: --range NAME=lo:hi."
            )
    cuts = cuts_of(session, model, valid, variation, length)
    worst = 0.0
    for pair, (index, name) in itertools.product(pairs, enumerate(names)):
        error = difference(_own(pair.padded[index], pair.alone[index]), pair.alone[index])
        if not error <= tolerance:
            raise PaddingError(_leak(model, pair, name, error, tolerance, variation))
        worst = max(worst, error)
    tried = sorted({size for pair in pairs for size in pair.lengths.values()})
    return Padding(fills=variation.fills, masks=variation.masks, cuts=cuts, lengths=tuple(tried), error=worst)


def _pairs(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: Mapping[str, Range],
    variation: Variation,
    length: int,
) -> Iterator[Pair]:
    """Requests of several lengths that run, alone and padded; each dimension takes another share of `length`."""
    for number, share in enumerate(SHARES):
        lengths = {
            size: max(1, round(length * SHARES[(number + offset) % len(SHARES)] if offset else length * share))
            for offset, size in enumerate(variation.sizes)
        }
        for beyond in BEYOND:
            longer = {size: max(round(length * beyond), own) for size, own in lengths.items()}
            if longer == lengths:
                continue
            request = variation.alone(model, valid, lengths, number)
            padded = variation.padded(request, longer)
            try:
                outputs = run(session, request), run(session, padded)
            except onnxruntime_errors():
                continue
            yield Pair(lengths=lengths, request=request, longer=padded, alone=outputs[0], padded=outputs[1])


def _lengths(rows: Rows, variation: Variation) -> dict[str, int]:
    return {axis.size: rows[axis.tensor].shape[axis.index] for axis in variation.fills}


def _own(padded: Array, alone: Array) -> Array:
    return padded[tuple(map(slice, alone.shape))] if padded.ndim == alone.ndim else padded


def _leak(model: onnx.ModelProto, pair: Pair, name: str, error: float, tolerance: float, variation: Variation) -> str:
    from export.graph.padding_leak import find

    node = find(model, pair.request, pair.longer, tolerance=tolerance)
    sizes = " and ".join(f"{own} to {_lengths(pair.longer, variation)[size]}" for size, own in pair.lengths.items())
    reason = f" {node}." if node else ""
    return (
        f'output "{name}" of a request that is padded from {sizes} elements differs from its answer alone by '
        f"{error:.1e} of its largest value (tolerance {tolerance:.0e}).{reason}"
    )


def _runs_only_equal(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: Mapping[str, Range],
    variation: Variation,
    length: int,
) -> bool:
    try:
        run(session, variation.alone(model, valid, dict.fromkeys(variation.sizes, length), 0))
    except onnxruntime_errors():
        return False
    return True
