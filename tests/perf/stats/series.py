"""Latencies that depend on each other, with known percentiles."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

SPREAD = 0.3


def latencies(kind: str, runs: int, requests: int, seed: int) -> NDArray[np.float64]:
    """(runs, requests) lognormal latencies.

    `independent`; `alike R`, each correlated by R with the one before (in the logarithm); or `batches N`, of which N in
    a row have nine tenths of their variance in common.
    """
    rng, (name, *number) = np.random.default_rng(seed), kind.split()
    if name == "batches":
        size = int(number[0])
        common = np.repeat(rng.normal(size=(runs, -(-requests // size))), size, axis=1)[:, :requests]
        return lognormal(math.sqrt(0.9) * common + math.sqrt(0.1) * rng.normal(size=(runs, requests)))
    likeness = float(number[0]) if number else 0.0
    values = [rng.normal(size=runs)]
    for step in rng.normal(0, math.sqrt(1 - likeness**2), (requests - 1, runs)):
        values.append(likeness * values[-1] + step)
    return lognormal(np.transpose(values))


def lognormal(normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Latencies with a median of 1 from standard normal numbers."""
    return np.asarray(np.exp(SPREAD * normal), dtype=np.float64)


def true_percentile(percent: float) -> float:
    """The percentile of the distribution of `latencies`."""
    return math.exp(SPREAD * float(ndtri(percent / 100)))
