"""How the outputs of a graph follow the length of a request, so that what belongs to padding can be cut off."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import onnx
import onnxruntime

from export.graph.axis_proof import onnxruntime_errors, run
from export.graph.input_values import Range
from export.graph.onnx_graph import dims
from export.graph.padding_axes import PaddingError, Variation
from export.graph.padding_cut import Axis, Cut

# Lengths in a row that are tried first, and the largest stride, for which lengths up to three times as far are tried.
SPAN, MOST_STRIDE = 9, 2**12
STEPS = 3
"""Steps of the size that show its stride."""


def cuts_of(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: Mapping[str, Range],
    variation: Variation,
    length: int,
) -> dict[str, list[Cut]]:
    """How the open axes of the outputs follow the lengths; raises `PaddingError` for one that is not certain."""
    opened = {
        (number, place): value.name
        for number, value in enumerate(model.graph.output)
        for place, size in enumerate(dims(value))
        if place and not isinstance(size, int)
    }
    if not opened:
        return {}
    found: dict[tuple[int, int], Cut] = {}
    sources: dict[str, Axis] = {}
    for axis in variation.fills:
        sources.setdefault(axis.size, axis)  # of inputs with one length, the graph's first
    for source in sources.values():
        shapes = _tried(session, model, valid, variation, length, source)
        for (number, place), name in opened.items():
            sizes = _sizes(partial(_size, shapes, number, place), length)
            if len({size for _, size in sizes}) <= 1:
                continue
            if first := found.get((number, place)):
                raise PaddingError(
                    f"axis {place} of output {name!r} follows {first.source} and {source}, so it is not one length "
                    "that says what belongs to a request. Serve it with requests of equal length."
                )
            found[number, place] = _followed(name, place, sizes, source)
    if still := [f"axis {key[1]} of {name!r}" for key, name in opened.items() if key not in found]:
        raise PaddingError(
            f"{', '.join(still)} is open in the graph and had one size for all lengths that run from {length} to "
            f"{length + MOST_STRIDE}, so it is not known what belongs to a request. Export it with a fixed size there, "
            "or serve requests of equal length."
        )
    cuts: dict[str, list[Cut]] = {}
    for key, cut in sorted(found.items()):
        cuts.setdefault(opened[key], []).append(cut)
    return cuts


def _tried(
    session: onnxruntime.InferenceSession,
    model: onnx.ModelProto,
    valid: Mapping[str, Range],
    variation: Variation,
    length: int,
    source: Axis,
) -> Callable[[int], list[tuple[int, ...]]]:
    """Gives the shapes of the outputs for a length of `source`, none if that does not run; all others have `length`."""

    @cache
    def shapes(own: int) -> list[tuple[int, ...]]:
        lengths = dict.fromkeys(variation.sizes, length) | {source.size: own}
        try:
            return [output.shape for output in run(session, variation.alone(model, valid, lengths, 0))]
        except onnxruntime_errors():
            return []

    return shapes


def _size(shapes: Callable[[int], list[tuple[int, ...]]], output: int, axis: int, own: int) -> int | None:
    found = shapes(own)
    return found[output][axis] if found and axis < len(found[output]) else None


def _sizes(size: Callable[[int], int | None], length: int) -> list[tuple[int, int]]:
    """Lengths that run with the size of an output: some in a row, and both sides of the next steps of the size."""
    found = {own: size(own) for own in range(length, length + SPAN)}
    step = length
    for _ in range(STEPS):
        same, reach = (size(step), None), 1
        while reach <= MOST_STRIDE and size(step + reach) in same:
            reach *= 2
        if reach > MOST_STRIDE:
            break
        low, step = step + reach // 2, step + reach
        while step - low > 1:
            middle = (low + step) // 2
            low, step = (middle, step) if size(middle) in same else (low, middle)
        found |= {step - 1: size(step - 1), step: size(step)}
    return [(own, each) for own, each in sorted(found.items()) if each is not None]


def _followed(name: str, axis: int, sizes: Sequence[tuple[int, int]], source: Axis) -> Cut:
    """The one floor((length + moved) / stride) that gives all these sizes."""
    fits: list[Cut] = []
    for stride in range(1, min(MOST_STRIDE, sizes[-1][0]) + 1):
        # Every size gives an interval for what is added before the division.
        low = max(size * stride - length for length, size in sizes)
        high = min(size * stride - length + stride - 1 for length, size in sizes)
        fits += [Cut(index=axis, source=source, moved=moved, stride=stride) for moved in range(low, high + 1)[:2]]
    if len(fits) != 1:
        raise PaddingError(
            f'axis {axis} of output "{name}" depends on the length, but not as one whole fraction of it that lengths '
            f"from {sizes[0][0]} to {sizes[-1][0]} show, so what belongs to a request cannot be cut out. Serve it with "
            "requests of equal length."
        )
    return fits[0]


def check_sizes(
    names: Sequence[str],
    cuts: Mapping[str, Sequence[Cut]],
    answers: Sequence[tuple[Mapping[str, int], Sequence[tuple[int, ...]]]],
) -> None:
    """Raise `PaddingError` unless the cuts give the shapes of all answers; each is lengths by size, then shapes."""
    for index, name in enumerate(names):
        first = answers[0][1][index]
        for lengths, shapes in answers:
            due = dict(enumerate(first[1:], 1)) | {
                cut.index: cut.size(lengths[cut.source.size]) for cut in cuts.get(name, ())
            }
            if list(shapes[index][1:]) != [size for _, size in sorted(due.items())]:
                own = " and ".join(map(str, lengths.values()))
                raise PaddingError(
                    f"output {name!r} of a request of length {own} has shape {list(shapes[index][1:])}, and other "
                    f"lengths lead to {list(due.values())}, so what belongs to a request cannot be cut out. Serve it "
                    "with requests of equal length."
                )
