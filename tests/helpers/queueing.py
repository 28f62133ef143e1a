"""The queue of a dynamic batcher without delay, solved exactly: an independent check of the simulation.

Requests arrive as a Poisson process. Whenever the only instance is free, it takes all waiting requests, at most `cap`;
an execution of b rows takes a fixed time tau(b): M/D^b/1. Times are in any unit, rates in its inverse.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def capacity(service: Callable[[int], float], cap: int) -> float:
    """Return the arrival rate that full batches just carry."""
    return cap / service(cap)


def mean_latency(rate: float, service: Callable[[int], float], cap: int) -> float:
    """Return the exact mean time from arrival to the end of the execution; raises `ValueError` at or above capacity.

    A Markov chain on q, the number of requests that wait at the end of an execution. The next execution takes
    b = min(max(q, 1), cap) of them, and leaves q - b (or 0) and those that arrive within tau(b). A cycle adds b tau for
    its requests, (q - b) tau for those left, and rate tau^2 / 2 for new ones; the mean latency is what a cycle adds
    over what it serves (renewal reward). States that are practically never reached are cut off.
    """
    if rate >= capacity(service, cap):
        raise ValueError(f"{rate:g} arrivals are not below the capacity of {capacity(service, cap):g}: no mean exists")
    states = _states(rate, service, cap)
    q = np.arange(states)
    batch = np.minimum(np.maximum(q, 1), cap)
    tau = np.array([service(int(b)) for b in range(1, cap + 1)])[batch - 1]
    left = np.maximum(q - batch, 0)
    arrived = {b: _poisson(rate * service(b), states) for b in range(1, cap + 1)}
    steps = np.zeros((states, states))
    for state in range(states):
        steps[state, left[state] :] = arrived[int(batch[state])][: states - left[state]]
        steps[state, -1] += 1 - steps[state].sum()
    share = _stationary(steps)
    spent = batch * tau + left * tau + rate * tau**2 / 2
    return float(share @ spent / (share @ batch))


def _states(rate: float, service: Callable[[int], float], cap: int) -> int:
    """Return enough states for the queue's tail to vanish in double precision, unless the load is near 1."""
    near = 1 / (1 - rate / capacity(service, cap))
    return int(2 * cap + 12 * rate * service(cap) + 60 + 16 * near)


def _poisson(mean: float, states: int) -> NDArray[np.float64]:
    counts = np.arange(1, states)
    logs: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(counts))]) - mean
    return np.exp(logs)


def _stationary(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the stationary distribution of the chain."""
    system = steps.T - np.eye(len(steps))
    system[-1] = 1.0
    right = np.zeros(len(steps))
    right[-1] = 1.0
    return np.linalg.solve(system, right)
