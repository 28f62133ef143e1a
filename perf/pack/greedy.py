"""The devices that one model fills, and best fit decreasing, which puts the remainders onto devices one by one.

In plain bin packing it needs at most 11/9 OPT + 6/9 bins.
"""

from collections.abc import Sequence

from perf.pack.duty import EPSILON, Items, Portion, Turns, turns
from perf.pack.placement import Node
from perf.pack.workload import Model
from triton_batching.terminal import Mistake


def saturated(model: Model, memory_bytes: float) -> tuple[list[Node], Portion | None]:
    """The devices that one model fills, and the remaining portion.

    A request that just misses an execution waits for it, so two executions must be within the target. Of the batch
    sizes that allow this, the one with the highest throughput is taken. Raises `Mistake` if there is none.
    """
    fitting = [k for k in range(1, model.largest + 1) if model.memory.at(k) <= memory_bytes]
    if not fitting:
        raise Mistake(
            f"model {model.name}: holds {model.memory.at(1) / 2**20:,.0f} MiB with one row, and a device has "
            f"{memory_bytes / 2**20:,.0f} MiB. Give devices more memory, or the model a smaller data type."
        )
    sizes = [k for k in fitting if 2 * model.latency.at(k) <= model.device_target_ms * (1 + EPSILON)]
    if not sizes:
        raise Mistake(
            f"model {model.name}: two executions of one row take {2 * model.latency.at(1):g} ms, more than the "
            f"{model.device_target_ms:g} ms that its target leaves, so a request that just misses an execution is late "
            "on any device. Raise p99_ms, or use a faster device."
        )
    batch = max(sizes, key=lambda k: (k / model.latency.at(k), k))
    duty = model.latency.at(batch)
    throughput = batch / duty * 1e3
    whole = int(model.rate_per_s / throughput + EPSILON)
    node = turns([Portion(model=model, rate_per_s=throughput)], duty)
    left = model.rate_per_s - whole * throughput
    return [node] * whole, Portion(model=model, rate_per_s=left) if left > EPSILON * model.rate_per_s else None


def best_fit_decreasing(problem: Turns) -> list[Items]:
    """Put each item, the largest first, into the bin that is fullest with it."""
    bins: list[Items] = []
    for item in sorted(range(problem.count), key=lambda item: -problem.size(item)):
        place = fullest(problem, bins, item)
        if place is None:
            bins.append(frozenset({item}))
        else:
            bins[place] |= {item}
    return bins


def fullest(problem: Turns, bins: Sequence[Items], item: int) -> int | None:
    """The index of the bin that is fullest with the item; None if the item fits into no bin."""
    fits = [(full, -at) for at, items in enumerate(bins) if (full := problem.fullness(items | {item})) is not None]
    return -max(fits)[1] if fits else None
