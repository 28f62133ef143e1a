"""The batch queue that a dynamic batcher without delay is, solved exactly: an independent check on the simulation.

Requests arrive as a Poisson process; whenever the one instance is free it takes all that wait, at most `cap`, and an
execution of b rows takes a fixed time tau(b): M/D^b/1. Times are in any one unit, rates in its inverse.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def capacity(service: Callable[[int], float], cap: int) -> float:
    """The arrival rate that full batches just carry."""
    return cap / service(cap)


def mean_latency(rate: float, service: Callable[[int], float], cap: int) -> float:
    """Exact mean time from arrival to the end of the execution.

    A Markov chain on q, the requests that wait at the end of an execution: the next takes b = min(max(q, 1), cap) of
    them, and leaves q' = q - b (or 0) and those that arrived in tau(b). A cycle adds to the time that requests spend
    b tau for those in it, (q - b) tau for those left, and rate tau^2 / 2 for those that come in it; the mean is what a
    cycle adds over what it serves (renewal reward). Cut off where the queue hardly ever is. Raises `ValueError` at or
    above capacity.
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


def bound(rate: float, *, fixed: float, row: float) -> float:
    """An upper bound on the mean latency for tau(b) = fixed + row x b without a cap: min(phi0, phi1) of Inoue,
    "Queueing analysis of GPU-based inference servers with dynamic batching" (Performance Evaluation, 2021).

    Raises `ValueError` where rate x row is 1 or more, so that no batch size is stable.
    """
    load = rate * row
    if load >= 1:
        raise ValueError(f"rate x row is {load:g}: not below 1, so no mean exists")
    phi0 = 1.5 * fixed / (1 - load) + row / 2 * (load + 2) / (1 - load**2)
    alone = row * (2 + load) / (2 * (1 - load**2)) * (1 + 2 * load * rate * fixed + (rate * fixed) ** 2)
    phi1 = alone + fixed * (1 + load) + rate * fixed**2 / 2
    return min(phi0, phi1)


def _states(rate: float, service: Callable[[int], float], cap: int) -> int:
    """Enough for the queue's tail to be below what double precision sees, unless the load is within some % of 1."""
    near = 1 / (1 - rate / capacity(service, cap))
    return int(2 * cap + 12 * rate * service(cap) + 60 + 16 * near)


def _poisson(mean: float, states: int) -> NDArray[np.float64]:
    counts = np.arange(1, states)
    logs: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(np.log(mean) - np.log(counts))]) - mean
    return np.exp(logs)


def _stationary(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distribution that the steps leave as it is."""
    system = steps.T - np.eye(len(steps))
    system[-1] = 1.0
    wanted = np.zeros(len(steps))
    wanted[-1] = 1.0
    return np.linalg.solve(system, wanted)
