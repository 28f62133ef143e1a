"""The proof of a ragged model: in random mixes of lengths every item is answered as it is alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import Items, cut, draw_items, feed
from export.graph.samples import Array
from export.models.catalogue import Exporter, Reference

MIXES = 8
LARGEST = 12

Answers = Sequence[Mapping[str, NDArray[Any]]]


def rows_error(config: ModelConfig, session: onnxruntime.InferenceSession, exporter: Exporter) -> float:
    """The largest difference of an item in a mix from the item alone.

    It is absolute, over the largest expected value (at least 1). An answer may be longer in a mix than alone
    (steps up to those of the longest item); its own part is compared.
    """
    return max(
        _error(run(config, session, items), [run(config, session, [item])[0] for item in items])
        for items in _drawn(config, exporter)
    )


def reference_error(
    config: ModelConfig, session: onnxruntime.InferenceSession, exporter: Exporter, reference: Reference
) -> float:
    """The largest difference of an item in a mix from the reference on the item alone, as in `rows_error`."""
    return max(
        _error(run(config, session, items), [_alone(reference, item) for item in items])
        for items in _drawn(config, exporter)
    )


def _drawn(config: ModelConfig, exporter: Exporter) -> Iterator[Items]:
    for seed, lengths in enumerate(mixes(*exporter.lengths)):
        yield draw_items(config, lengths, seed=seed)


def mixes(shortest: int, longest: int) -> Iterator[list[int]]:
    """Lengths of batches: one item, equal ones, the two ends together, then random mixes."""
    rng = np.random.default_rng(longest)
    yield [shortest]
    yield [longest] * 3
    yield [shortest, longest, shortest]
    for _ in range(MIXES - 3):
        yield rng.integers(shortest, longest + 1, int(rng.integers(2, LARGEST + 1))).tolist()


def run(config: ModelConfig, session: onnxruntime.InferenceSession, items: Items) -> Answers:
    """One execution of `items`; the answer of each."""
    names = [tensor.name for tensor in config.output]
    outputs = dict(zip(names, session.run(names, feed(config, items)), strict=True))
    parts = {name: cut(config, name, array, items) for name, array in outputs.items()}
    for name, found in parts.items():
        if len(found) != len(items):
            raise ValueError(f"output '{name}' has {len(found)} rows for {len(items)} items, so it cannot be cut.")
    return [{name: parts[name][index] for name in names} for index in range(len(items))]


def _alone(reference: Reference, item: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    answer = reference({name: array[np.newaxis] for name, array in item.items()})
    return {name: array[0] for name, array in answer.items()}


def _error(found: Answers, expected: Answers) -> float:
    return max(
        _difference(one[name], other[name]) for one, other in zip(found, expected, strict=True) for name in other
    )


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    own = found[: len(expected)].astype(np.float64)
    if not expected.size:
        return 0.0
    wrong = np.abs(own - expected.astype(np.float64)).max()
    return float(wrong) / max(1.0, float(np.abs(expected).max()))
