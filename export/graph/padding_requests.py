"""Requests of many lengths and values, what the graph answers to each alone, and batches in which they are padded."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

from export.graph.axis_proof import names_of, onnxruntime_errors, run, take
from export.graph.error_measure import Measure, Rounding
from export.graph.input_values import Array, Range, Rows
from export.graph.onnx_graph import dims, graph_inputs
from export.graph.padding_axes import Variation
from export.graph.rounding import noise
from export.graph.row_families import SCALES, scaled

# Lengths that are always tried, shares of the proved length, and multiples of it.
SHORT, SHARES, FAR = (1, 2, 3), (0.2, 0.45, 0.6, 0.7, 0.95, 1.0), (4, 16)
# How many requests of one length: those with extreme values, and all of them for the shortest lengths (their answers
# have few elements, so each shows less), for usual lengths and for long ones.
SPECIAL, MANY, SOME, FEW = 7, 39, 23, 6
# Of the random requests of one length, one in so many is multiplied by each of the scales.
FEW_OF = 5
# A run of more elements or seconds has fewer requests.
MOST_ELEMENTS, MOST_SECONDS = 2**21, 1.5


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Requests of one length that were not padded, their answers, and the rows whose answers are finite.

    `measures` compare the answer to a row, by the family of the row. `scales` are what its values were multiplied by; 0
    stands for extreme values.
    """

    lengths: Mapping[str, int]
    rows: Rows
    outputs: Sequence[Array]
    usable: Sequence[int]
    measures: Sequence[Measure]
    scales: Sequence[float]

    def request(self, row: int) -> Rows:
        """One of the requests."""
        return take(self.rows, row, row + 1)

    def some(self, count: int) -> list["Member"]:
        """`count` usable requests, spread evenly over those with extreme values and the random ones."""
        places = np.unique(np.linspace(0, len(self.usable) - 1, max(1, min(count, len(self.usable)))).astype(int))
        return [(self, self.usable[place]) for place in places]


Member = tuple[Alone, int]
"""A request in a padded batch: those of its length, and its row there."""


class Requests:
    """Makes requests, and runs them in batches that are short enough to wait for."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        model: onnx.ModelProto,
        valid: Mapping[str, Range],
        variation: Variation,
        roundings: Sequence[Rounding],
    ) -> None:
        self._session, self._model, self._valid, self.variation = session, model, valid, variation
        self._roundings, self._seen = roundings, (1, 0.0)
        self.scales = SCALES if any(map(self._guessed, valid)) else ()

    def run(self, rows: Rows) -> list[Array] | None:
        """The outputs; None if these rows do not run."""
        first = next(iter(rows.values()))
        began = time.perf_counter()
        try:
            outputs = run(self._session, rows)
        except onnxruntime_errors():
            return None
        each = sum(array.size for array in rows.values()) // len(first)
        self._seen = max(self._seen, (each, (time.perf_counter() - began) / len(first)))
        return outputs

    def affordable(self, lengths: Mapping[str, int], wanted: int) -> int:
        """How many of the wanted rows of these lengths fit into one run; 0 if not even one."""
        longest = max(lengths.values())
        elements = sum(
            math.prod(longest if isinstance(size, str) else size for size in dims(value)[1:])
            for value in graph_inputs(self._model)
        )
        largest, seconds = self._seen
        growth = elements / largest
        each = seconds * max(growth, growth**2)  # attention grows with the square
        return min(wanted, MOST_ELEMENTS // max(1, elements), int(MOST_SECONDS / each) if each else wanted)

    def alone(self, length: int) -> Iterator[Alone]:
        """Requests of every length that runs, the shortest first; each dimension takes another length at a time."""
        sizes = self.variation.sizes
        near = sorted({*SHORT, *(max(1, round(length * share)) for share in SHARES)})
        near = [size for size in near if size <= length] or [length]
        drawn = [
            {size: near[(number + 3 * offset) % len(near)] for offset, size in enumerate(sizes)}
            for number in range(len(near))
        ]
        far = [{size: length * share + offset for offset, size in enumerate(sizes)} for share in FAR]
        for number, lengths in enumerate([*drawn, *far]):
            wanted = MANY if max(lengths.values()) <= max(SHORT) else SOME if number < len(drawn) else FEW
            count = self.affordable(lengths, wanted)
            if number < len(drawn) or count:
                yield from self._alone(lengths, max(1, count), number)

    def _alone(self, lengths: Mapping[str, int], count: int, seed: int) -> Iterator[Alone]:
        rows = self.variation.alone(self._model, self._valid, lengths, seed, rows=count)
        special = min(SPECIAL, count // 2)
        for own in self._scales(count, special):
            tried = self._scaled(self._special(rows, own.count(0)), own)
            if (outputs := self.run(tried)) is not None:
                numbers = [output for output in outputs if output.dtype.kind == "f"]
                usable = [row for row in range(count) if all(np.isfinite(output[row]).all() for output in numbers)]
                alike = {scale: [row for row in usable if own[row] == scale] for scale in {*own}}
                measures = {scale: self._measure(tried, outputs, places) for scale, places in alike.items()}
                yield Alone(
                    lengths=lengths,
                    rows=tried,
                    outputs=outputs,
                    usable=usable,
                    measures=[measures[scale] for scale in own],
                    scales=own,
                )
                return

    def _scales(self, count: int, special: int) -> Iterator[list[float]]:
        """What each row is multiplied by: most stay, a few are small, large or saturating; 0 for extreme values.

        If such rows do not run, the next ones leave out the largest scale, and the last have plain rows only.
        """
        few = (count - special) // FEW_OF
        for kept in range(len(self.scales), -1, -1):
            some = [times for times in self.scales[:kept] for _ in range(few)]
            yield [0.0] * special + [1.0] * (count - special - len(some)) + some
        yield [1.0] * count

    def _scaled(self, rows: Rows, scales: Sequence[float]) -> Rows:
        """The same with numbers of a guessed range times their scale; 0 stands for extreme values, which stay."""
        changed = dict(rows)
        for name in filter(self._guessed, self._valid):
            if rows[name].dtype.kind == "f":
                changed[name] = scaled(rows[name], [times or 1.0 for times in scales])
        return changed

    def _guessed(self, name: str) -> bool:
        return self._valid[name].guessed and name not in self.variation.masks

    def _measure(self, rows: Rows, outputs: Sequence[Array], places: Sequence[int]) -> Measure:
        """The measure of one family of rows, from their answers."""
        alone = [[output[row : row + 1] for output in outputs] for row in places]
        own = {name: array[list(places)] for name, array in rows.items()}
        return Measure(names_of(self._session), alone, self._roundings, lambda: noise(self._model, own))

    def _special(self, rows: Rows, count: int) -> Rows:
        """The same, but the first `count` rows have extreme values: the lowest, the highest, or the fill value."""
        changed = dict(rows)
        for name in {axis.tensor for axis in self.variation.fills} & self._valid.keys():
            bounds, fill, drawn = self._valid[name], self.variation.fill(name), rows[name].copy()
            low, high = (bounds.low, bounds.high) if drawn.dtype.kind == "f" else (int(bounds.low), int(bounds.high))
            middle = (low + high) / 2
            (axis, *_) = (axis.index for axis in self.variation.fills if axis.tensor == name)
            half = (drawn.shape[axis] + 1) // 2
            begin, end = ((slice(None),) * (axis - 1) + (part,) for part in (slice(0, half), slice(half, None)))
            values = [
                np.full_like(drawn[0], low),
                np.full_like(drawn[0], high),
                np.where(drawn[0] > middle, low, drawn[0]),
                np.where(drawn[0] < middle, high, drawn[0]),
            ]
            if low <= fill <= high:
                filled = [drawn[0].copy() for _ in range(3)]
                filled[0][...] = filled[1][begin] = filled[2][end] = fill
                values += filled
            for row, value in enumerate(values[:count]):
                drawn[row] = value
            changed[name] = drawn
        return changed

    def padded(self, members: Sequence[Member], longer: Mapping[str, int]) -> list[Array] | None:
        """The outputs of these requests in one batch, padded to these lengths; None if it does not run."""
        return self.run(self.variation.joined([alone.request(row) for alone, row in members], longer))
