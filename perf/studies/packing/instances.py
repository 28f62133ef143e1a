"""Seeded problems to compare packers on: workloads of models, and bins of one dimension with a known optimum."""

import random

from perf.pack.problem import Plain
from perf.pack.workload import Curve, Devices, Model, Workload

GIB = 2**30
CAPACITY = 150


def workload(seed: int, count: int) -> Workload:
    """Models whose time is a line in the batch, with targets of 5 to 20 single executions; devices of 16 GiB.

    Each asks for 10 to 90 % of what fills a device, with an odd seed for half of that: only remainders are packed,
    some two or some four on a device.
    """
    chance = random.Random(seed)
    scale = 0.5 if seed % 2 else 1.0
    models = tuple(_model(f"model_{number}", chance, scale) for number in range(count))
    return Workload(devices=Devices(count=count, memory_bytes=16 * GIB), models=models)


def _model(name: str, chance: random.Random, scale: float) -> Model:
    fixed, row = chance.uniform(2, 30), chance.uniform(0.2, 4)
    target = chance.uniform(5, 20) * (fixed + row)
    batch = max(k for k in range(1, 65) if 2 * (fixed + row * k) <= target)
    throughput = batch / (fixed + row * batch) * 1e3
    weights, each = chance.uniform(0.1, 4) * GIB, chance.uniform(0.005, 0.05) * GIB
    return Model(
        name=name,
        rate_per_s=scale * chance.uniform(0.1, 0.9) * throughput,
        target_ms=target,
        latency=Curve.line(fixed, row, 64),
        memory=Curve.line(weights, each, 64),
    )


def uniform(seed: int, count: int) -> Plain:
    """Whole sizes of 20 to 100, all alike likely, in bins of 150 (Falkenauer 1996)."""
    chance = random.Random(seed)
    return Plain(sizes=[chance.randint(20, 100) for _ in range(count)], capacity=CAPACITY)


def triplets(seed: int, bins: int, capacity: int = 1000) -> Plain:
    """Three items of a quarter to a half bin that fill each bin to the last unit (Falkenauer 1996): the optimum is
    `bins`, and no bin of a packing that is as good has room left."""
    chance = random.Random(seed)
    sizes: list[int] = []
    for _ in range(bins):
        first = chance.randint(380 * capacity // 1000, 490 * capacity // 1000)
        rest = capacity - first
        second = chance.randint(capacity // 4, rest // 2)
        sizes += [first, second, rest - second]
    chance.shuffle(sizes)
    return Plain(sizes=sizes, capacity=capacity)
