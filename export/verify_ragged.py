"""Proves a ragged model: in random mixes of lengths every item gets the answer that it gets alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.axis_proof import NotRowwise
from export.graph.error_measure import LOOSER, Difference, Measure, largest
from export.graph.ragged_feed import Items, draw_items, feed
from export.graph.rounding import noise, roundings
from export.models.catalogue import Exporter, Reference

MIXES = 8
LARGEST = 12

Answers = Sequence[Mapping[str, NDArray[Any]]]


class Mixes:
    """Batches of items of mixed lengths, and the answer to each item alone.

    An answer may be longer in a mix than alone (as long as that of the longest item); only the item's own part is
    compared.
    """

    remedy = (
        "So padding reaches the answer. Mask the positions beyond an item's own length, see export/models/ragged.py."
    )

    def __init__(
        self, config: ModelConfig, session: onnxruntime.InferenceSession, model: onnx.ModelProto, exporter: Exporter
    ) -> None:
        self._config, self._session = config, session
        self._mixes = [draw_items(config, lengths, seed=seed) for seed, lengths in enumerate(mixes(*exporter.lengths))]
        self._alone = [[run(config, session, [item])[0] for item in items] for items in self._mixes]
        self._names = [output.name for output in model.graph.output]
        every = [[each[name][np.newaxis] for name in self._names] for answers in self._alone for each in answers]
        most = draw_items(config, [exporter.lengths[1]] * 3)
        self._measure = Measure(self._names, every, roundings(model), lambda: noise(model, feed(config, most)))

    def rows(self) -> Difference:
        """The largest difference of an item in a mix from the item alone; raises `NotRowwise`."""
        found = largest(list(self._differences(self._alone)))
        if found.exceeds:
            raise NotRowwise(f"an item among longer ones answers differently from the item alone, by {found}", {})
        return found

    def reference(self, reference: Reference) -> Difference:
        """The largest difference of an item in a mix from the reference on the item alone."""
        expected = [[_alone(reference, item) for item in items] for items in self._mixes]
        return largest(list(self._differences(expected, LOOSER)))

    def _differences(self, expected: Sequence[Answers], looser: float = 1) -> Iterator[Difference]:
        for items, answers in zip(self._mixes, expected, strict=True):
            mixed = run(self._config, self._session, items)
            for row, (actual, alone) in enumerate(zip(mixed, answers, strict=True)):
                own = [actual[name][np.newaxis, : len(alone[name])] for name in self._names]
                wanted = [alone[name][np.newaxis] for name in self._names]
                yield self._measure.compare(own, wanted, first_row=row, looser=looser)


def mixes(shortest: int, longest: int) -> Iterator[list[int]]:
    """Lengths of the items of `MIXES` batches: one item, three equal items, shortest with longest, random mixes."""
    rng = np.random.default_rng(longest)
    yield [shortest]
    yield [longest] * 3
    yield [shortest, longest, shortest]
    for _ in range(MIXES - 3):
        yield rng.integers(shortest, longest + 1, int(rng.integers(2, LARGEST + 1))).tolist()


def run(config: ModelConfig, session: onnxruntime.InferenceSession, items: Items) -> Answers:
    """One execution of `items`; returns the answer of each, by output name."""
    names = [tensor.name for tensor in config.output]
    outputs = dict(zip(names, session.run(names, feed(config, items)), strict=True))
    for name, rows in outputs.items():
        if len(rows) != len(items):
            raise ValueError(f"output '{name}' has {len(rows)} rows for {len(items)} items, so it cannot be split.")
    return [{name: outputs[name][index] for name in names} for index in range(len(items))]


def _alone(reference: Reference, item: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    answer = reference({name: array[np.newaxis] for name, array in item.items()})
    return {name: array[0] for name, array in answer.items()}
