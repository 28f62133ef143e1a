"""The devices that one model fills, and two ways to put the remainders onto devices, one after the other.

`squishy` is Nexus' (Shen et al., SOSP 2019, algorithm 1): a model's batch, and its share of a device, shrinks when it
shares the device with a model of a shorter cycle. Best fit decreasing tries all cycles; in plain bin packing it needs
at most 11/9 OPT + 6/9 bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from perf.pack.duty import EPSILON, Portion, Turns, turns
from perf.pack.placement import Node
from perf.pack.problem import Items, Problem
from perf.pack.workload import Model
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Alone:
    """A portion alone on a device: the longest cycle and the largest batch that its target allows."""

    portion: Portion
    batch: int
    duty_ms: float

    @property
    def occupancy(self) -> float:
        """The share of the cycle in which it executes."""
        return self.portion.model.latency.at(self.batch) / self.duty_ms


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


def alone(portion: Portion) -> Alone:
    """The largest batch with l(b) + b / rate <= target, at least one row.

    The cycle is the time in which the batch arrives, at most as long as the target allows.
    """
    model = portion.model
    sizes = range(1, model.largest + 1)
    in_time = [k for k in sizes if model.latency.at(k) + k / portion.rate <= model.device_target_ms * (1 + EPSILON)]
    batch = max(in_time, default=1)
    return Alone(
        portion=portion,
        batch=batch,
        duty_ms=min(batch / portion.rate, model.device_target_ms - model.latency.at(batch)),
    )


def squishy(problem: Turns) -> list[Items]:
    """Put each remainder, the fullest first, into the device that is fullest with it; the shorter cycle is taken."""
    parts = [alone(portion) for portion in problem.portions]
    bins: list[tuple[Items, float]] = []
    for item in sorted(range(len(parts)), key=lambda at: -parts[at].occupancy):
        fits = []
        for at, (items, duty) in enumerate(bins):
            merged = items | {item}
            cycle = min(duty, parts[item].duty_ms)
            full = merge(problem, sorted(merged), cycle)
            if full is not None:
                fits.append((full, -at, cycle))
        if fits:
            _, at, cycle = max(fits)
            bins[-at] = (bins[-at][0] | {item}, cycle)
        else:
            bins.append((frozenset({item}), parts[item].duty_ms))
    return [items for items, _ in bins]


def merge(problem: Turns, items: Sequence[int], duty_ms: float) -> float | None:
    """The occupancy of a device with these portions in one cycle; None if they do not fit."""
    portions = [problem.portions[item] for item in items]
    if any(portion.rows(duty_ms) > portion.model.largest for portion in portions):
        return None
    node = turns(portions, duty_ms)
    in_time = all(
        duty_ms + share.exec_ms <= portion.model.device_target_ms * (1 + EPSILON)
        for portion, share in zip(portions, node.shares, strict=True)
    )
    fits = in_time and node.occupancy <= 1 + EPSILON and node.memory_bytes <= problem.memory_bytes
    return node.occupancy if fits else None


def best_fit_decreasing(problem: Problem) -> list[Items]:
    """Put each item, the largest first, into the bin that is fullest with it."""
    bins: list[Items] = []
    for item in sorted(range(problem.count), key=lambda item: -problem.size(item)):
        place = fullest(problem, bins, item)
        if place is None:
            bins.append(frozenset({item}))
        else:
            bins[place] |= {item}
    return bins


def fullest(problem: Problem, bins: Sequence[Items], item: int) -> int | None:
    """The index of the bin that is fullest with the item; None if the item fits into no bin."""
    fits = [(full, -at) for at, items in enumerate(bins) if (full := problem.fullness(items | {item})) is not None]
    return -max(fits)[1] if fits else None
