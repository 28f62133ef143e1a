"""Proves a ragged model: in random mixes of lengths every item gets the answer that it gets alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import Items, draw_items, feed
from export.graph.samples import Array
from export.models.catalogue import Exporter, Reference

MIXES = 8
LARGEST = 12

Answers = Sequence[Mapping[str, NDArray[Any]]]


def rows_error(config: ModelConfig, session: onnxruntime.InferenceSession, exporter: Exporter) -> float:
    """The largest difference of an item in a mix from the item alone.

    Absolute, divided by the largest expected value (at least 1). An answer may be longer in a mix than alone (as long
    as that of the longest item); only the item's own part is compared.
    """
    return max(
        _error(run(config, session, items), [run(config, session, [item])[0] for item in items])
        for items in _mixes_of_items(config, exporter)
    )


def reference_error(
    config: ModelConfig, session: onnxruntime.InferenceSession, exporter: Exporter, reference: Reference
) -> float:
    """The largest difference of an item in a mix from the reference on the item alone, as in `rows_error`."""
    return max(
        _error(run(config, session, items), [_alone(reference, item) for item in items])
        for items in _mixes_of_items(config, exporter)
    )


def _mixes_of_items(config: ModelConfig, exporter: Exporter) -> Iterator[Items]:
    for seed, lengths in enumerate(mixes(*exporter.lengths)):
        yield draw_items(config, lengths, seed=seed)


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


def _alone(reference: Reference, item: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    answer = reference({name: array[np.newaxis] for name, array in item.items()})
    return {name: array[0] for name, array in answer.items()}


def _error(actual: Answers, expected: Answers) -> float:
    return max(
        _difference(answer[name], array)
        for answer, arrays in zip(actual, expected, strict=True)
        for name, array in arrays.items()
    )


def _difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    if not expected.size:
        return 0.0
    error = np.abs(actual[: len(expected)].astype(np.float64) - expected.astype(np.float64)).max()
    return float(error) / max(1.0, float(np.abs(expected).max()))
