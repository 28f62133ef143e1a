"""Random requests with their right answers, from a few lines of numpy that share no code with the models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.studies.soak.job import PACKED, PICTURES, POLICED, SUMS

MOST_ROWS = 8
PICTURE = (1, 32, 100)
Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True, kw_only=True)
class SoakRequest:
    """The inputs in the model's order, and the outputs that are right for them."""

    inputs: Arrays
    outputs: Arrays

    def problem(self, answer: Any) -> str:
        """What is wrong with an answer in one sentence; empty if it is right to the last bit."""
        outputs = answer if isinstance(answer, tuple) else (answer,)
        if len(outputs) != len(self.outputs):
            return f"{len(outputs)} outputs in place of {len(self.outputs)}"
        for number, (output, right) in enumerate(zip(outputs, self.outputs, strict=True)):
            if output.dtype != right.dtype or output.shape != right.shape:
                return f"output {number} is {output.dtype} {output.shape} in place of {right.dtype} {right.shape}"
            if not np.array_equal(output, right):
                places = np.flatnonzero(output != right)
                first = int(places[0])
                return (
                    f"output {number} differs in {len(places)} of {output.size} values, the first at {first}: "
                    f"{output.flat[first]} in place of {right.flat[first]}"
                )
        return ""


def pictures(rng: np.random.Generator) -> SoakRequest:
    """Pictures of whole numbers around a random level, so that two pictures rarely have the same mean."""
    rows = int(rng.integers(1, MOST_ROWS + 1)) if rng.random() < 0.3 else 1
    noise = rng.integers(-5, 6, (rows, *PICTURE))
    values = noise + rng.integers(-1000, 1001, (rows, 1, 1, 1))
    # Totals below 2^24 are exact in float32 in any order.
    means = values.reshape(rows, -1).sum(axis=1).astype(np.float32) / np.float32(noise[0].size)
    output = np.repeat(means, 26 * 37).reshape(rows, 26, 37)
    return SoakRequest(inputs=(values.astype(np.float32),), outputs=(output,))


def packed(rng: np.random.Generator) -> SoakRequest:
    """Strings of float32 values, of 0 to 16,000 bytes."""
    rows = [rng.integers(-1000, 1001, _length(rng, 4000) - 1) for _ in range(int(rng.integers(1, 4)))]
    strings = np.array([[row.astype("<f4").tobytes()] for row in rows], dtype=np.object_)
    totals = np.array([[row.sum()] for row in rows], dtype=np.float32)
    lengths = np.array([[row.size] for row in rows], dtype=np.int32)
    return SoakRequest(inputs=(strings,), outputs=(totals, lengths))


def sums(rng: np.random.Generator) -> SoakRequest:
    """One row of 1 to 8,000 values."""
    values = rng.integers(-100, 101, _length(rng, 8000))
    return SoakRequest(
        inputs=(values[None].astype(np.float32),), outputs=(np.array([[values.sum()]], dtype=np.float32),)
    )


REQUESTS: Mapping[str, Callable[[np.random.Generator], SoakRequest]] = {
    PICTURES: pictures,
    POLICED: pictures,
    PACKED: packed,
    SUMS: sums,
}


def _length(rng: np.random.Generator, most: int) -> int:
    """A length of 1 to `most`, uniform on a logarithmic scale."""
    return int(most ** rng.random())
