"""Proves that a request padded to a longer one answers as it does alone, and finds how outputs follow its length.

The open dimensions after the batch axis are the lengths. An input of shape [batch, length] that is called
attention_mask, or is named with --mask, is a mask: 1 for own elements, 0 for padding. Others are filled with a value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from export.graph.axis_proof import names_of, session_of
from export.graph.error_measure import Difference, Rounding, coarsest, largest
from export.graph.input_values import Array, Range
from export.graph.padding_axes import PaddingError, Variation, written
from export.graph.padding_cut import Axis, Cut
from export.graph.padding_cuts import check_sizes, cuts_of
from export.graph.padding_requests import FAR, FEW, Alone, Member, Requests
from export.graph.row_families import SCALES, beyond

# How much longer than the proved length all requests are padded, then some of them.
BEYOND, FAR_BEYOND = (2.0, 1.5, 1.0), 8
# Tables of positions, dilations and weak masks may fail only at such lengths. The memory of attention grows with the
# square of the length, so there is a largest one.
FARTHEST_TIMES, LEAST_FARTHEST, MOST_FARTHEST = 64, 2048, 4096
LEAST_LENGTHS = 3
# Further requests that show what a tensor in the middle of the graph varies by.
SHOWING = 3


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Which axes are padded, with which values, which masks are made, how outputs are cut, and what was tried.

    `lengths` are those of the requests, `longest` is the largest that one was padded to. `difference` is the largest of
    a padded answer from that of the request alone. `constant` are outputs that had one value for all requests, for
    which the proof shows little. `untried` are kinds of values with which no request ran or had a finite answer.
    """

    fills: Mapping[Axis, float]
    masks: Mapping[str, Axis]
    cuts: Mapping[str, Sequence[Cut]]
    lengths: tuple[int, ...]
    longest: int
    difference: Difference
    constant: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

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
class Trial:
    """Requests that ran in one batch, the lengths that they were padded to, and the outputs of the batch."""

    members: Sequence[Member]
    longer: Mapping[str, int]
    outputs: Sequence[Array]


def prove(
    model: onnx.ModelProto,
    valid: Mapping[str, Range],
    *,
    length: int,
    roundings: Sequence[Rounding],
    variation: Variation,
    say: Callable[[str], None] = lambda _: None,
) -> Padding:
    """Compare requests of many lengths alone and padded, also together; `length` is one that runs.

    Raises `PaddingError` with what differs, and the node that lets padding into the answer.
    """
    session = session_of(model)
    names = names_of(session)
    requests = Requests(session, model, valid, variation, roundings)
    alone = []
    for each in requests.alone(length):
        say(f"requests of {_sizes(each.lengths)} elements have answered alone")
        alone.append(each)
    if len({tuple(each.lengths.values()) for each in alone}) < LEAST_LENGTHS:
        raise PaddingError(_few(requests, model, valid, length))
    for each in alone:
        if not each.usable:
            wrong = (name for name, output in zip(names, each.outputs, strict=True) if not _numbers(output))
            raise PaddingError(
                f'output "{next(wrong)}" of a request alone has NaN or infinity, so a mask may have the opposite '
                "meaning, or the values are not valid: --range NAME=lo:hi."
            )
    cuts = cuts_of(session, model, valid, variation, length)
    alone = [each for each in alone if not _empty(cuts, each)]
    if len(alone) < LEAST_LENGTHS:
        raise PaddingError(_few(requests, model, valid, length))
    check_sizes(names, cuts, [(each.lengths, [output.shape for output in each.outputs]) for each in alone])
    found, longest, compared = list[Difference](), 0, set()
    for trial in _trials(requests, alone, length):
        say(f"comparing {len(trial.members)} requests padded to {_sizes(trial.longer)} elements")
        longest = max(longest, *trial.longer.values())
        compared |= {tuple(each.lengths.values()) for each, _ in trial.members}
        for place, (each, row) in enumerate(trial.members):
            own = [
                _cut(output[place : place + 1], cuts.get(name, ()), each.lengths)
                for name, output in zip(names, trial.outputs, strict=True)
            ]
            found.append(each.measures[row].compare(own, [output[row : row + 1] for output in each.outputs]))
            if found[-1].exceeds:
                raise PaddingError(_leak(model, variation, trial, place, found[-1], coarsest(roundings)))
    if len(compared) < LEAST_LENGTHS:
        raise PaddingError(_few(requests, model, valid, length))
    return Padding(
        fills=variation.fills,
        masks=variation.masks,
        cuts=cuts,
        lengths=tuple(sorted({size for lengths in compared for size in lengths})),
        longest=longest,
        difference=largest(found),
        constant=tuple(name for index, name in enumerate(names) if _constant([each.outputs[index] for each in alone])),
        untried=_untried(requests, alone),
    )


def _untried(requests: Requests, alone: Sequence[Alone]) -> tuple[str, ...]:
    tried = {each.scales[row] for each in alone for row in each.usable}
    scales = [f"{times:g} times the guessed range" for times in requests.scales if times not in tried]
    return (*scales, *([] if 0 in tried else ["the lowest and highest valid values"]))


def _sizes(lengths: Mapping[str, int]) -> str:
    return " and ".join(map(str, lengths.values()))


def _trials(requests: Requests, alone: Sequence[Alone], length: int) -> Iterator[Trial]:
    """Batches in which requests are padded: those of one length first, then of all lengths."""
    for each in alone:
        wanted = len(each.usable)
        for share in BEYOND:
            if trial := _one_length(requests, each, round(length * share), wanted):
                yield trial
                wanted = FEW
        if trial := _one_length(requests, each, length * FAR_BEYOND, FEW, far=True):
            yield trial
    yield from _farthest(requests, alone, length)
    near = [each for each in alone if max(each.lengths.values()) <= length * FAR[0] + len(each.lengths)]
    members = [member for each in near for member in each.some(2)]
    yield from _together(requests, members)
    yield from _together(requests, members[::-1])
    yield from _together(requests, [each.some(1)[-1] for each in [*alone[:: max(1, len(alone) // 3)], alone[-1]]])


def _one_length(requests: Requests, each: Alone, target: int, wanted: int, *, far: bool = False) -> Trial | None:
    """Some requests of one length, padded to `target`; None if that is not longer or does not run."""
    longer = {size: max(target, own) for size, own in each.lengths.items()}
    count = requests.affordable(longer, wanted)
    if longer == each.lengths or (far and not count):
        return None
    members = each.some(count)
    outputs = requests.padded(members, longer)
    return None if outputs is None else Trial(members=members, longer=longer, outputs=outputs)


def _farthest(requests: Requests, alone: Sequence[Alone], length: int) -> Iterator[Trial]:
    """Requests of a few lengths, padded to the longest that runs in a time that a user waits for."""
    target = max(min(length * FARTHEST_TIMES, MOST_FARTHEST), LEAST_FARTHEST)
    while target > length * FAR_BEYOND:
        trials = [_one_length(requests, each, target, 2, far=True) for each in (alone[0], alone[len(alone) // 2])]
        if found := [trial for trial in trials if trial]:
            yield from found
            return
        target //= 2


def _together(requests: Requests, members: Sequence[Member]) -> Iterator[Trial]:
    """Requests of several lengths, padded to the longest of them, as the server does it."""
    longer = {size: max(each.lengths[size] for each, _ in members) for size in requests.variation.sizes}
    count = max(2, requests.affordable(longer, len(members)))
    places = np.unique(np.linspace(0, len(members) - 1, min(count, len(members))).astype(int))
    chosen = [members[place] for place in places]
    outputs = requests.padded(chosen, longer)
    if outputs is not None:
        yield Trial(members=chosen, longer=longer, outputs=outputs)


def _cut(padded: Array, cuts: Sequence[Cut], lengths: Mapping[str, int]) -> Array:
    for cut in cuts:
        padded = padded[(slice(None),) * cut.index + (slice(0, cut.size(lengths[cut.source.size])),)]
    return padded


def _empty(cuts: Mapping[str, Sequence[Cut]], each: Alone) -> bool:
    """Whether requests are so short that no element of some output is theirs; pooling then makes one up."""
    return any(cut.size(each.lengths[cut.source.size]) == 0 for own in cuts.values() for cut in own)


def _numbers(output: Array) -> bool:
    return output.dtype.kind != "f" or bool(np.isfinite(output).all())


def _constant(outputs: Sequence[Array]) -> bool:
    """Whether all answers have one value."""
    values = np.concatenate([output.ravel() for output in outputs])
    return bool(values.size) and bool((values == values[0]).all())


def _leak(
    model: onnx.ModelProto, variation: Variation, trial: Trial, place: int, found: Difference, rounding: Rounding
) -> str:
    from export.graph.padding_leak import find

    each, row = trial.members[place]
    like = [other for other in each.usable if each.measures[other] is each.measures[row]]
    requests = [each.request(row), *map(each.request, like[:SHOWING])]
    node = find(model, requests, variation.joined(requests[:1], trial.longer), rounding)
    sizes = " and ".join(f"{own} to {trial.longer[size]}" for size, own in each.lengths.items())
    mixed = any(other is not each for other, _ in trial.members)
    others = ", in a batch with requests of other lengths," if mixed else ""
    reason = f" {node}." if node else ""
    return (
        f'output "{found.output}" of a request that is padded from {sizes} elements{others} differs from its answer '
        f"alone by {found}{beyond(times) if (times := each.scales[row]) in SCALES else ''}.{reason}"
    )


def _few(requests: Requests, model: onnx.ModelProto, valid: Mapping[str, Range], length: int) -> str:
    """Why fewer lengths than are needed for a proof run."""
    sizes = requests.variation.sizes
    equal = requests.variation.alone(model, valid, dict.fromkeys(sizes, length), 0)
    if len(sizes) > 1 and requests.run(equal) is not None:
        return (
            f"requests run only if {', '.join(sizes)} are equal. Export these dimensions with one name, "
            'as in dynamic_axes={"tokens": {1: "length"}, "mask": {1: "length"}}.'
        )
    return (
        f"of the lengths near {length} fewer than {LEAST_LENGTHS} run, so requests cannot vary in length. Export "
        "it with that axis dynamic, or name valid values with --range."
    )
