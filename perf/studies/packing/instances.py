"""Seeded problems for packers: workloads of models, and plain bins of one dimension."""

import random

from perf.pack.problem import Plain
from perf.pack.workload import Curve, Devices, Model, Workload

GIB = 2**30
CAPACITY = 150


def workload(seed: int, count: int) -> Workload:
    """Models whose execution time is linear in the batch size, with targets of 5 to 20 times a lone row's time.

    Devices have 16 GiB. Each model needs 10 to 90 % of a device's throughput, or half of that if the seed is odd, so
    that two or four models fit on a device. Requests arrive evenly, so that algorithms are compared without headroom.
    """
    rng = random.Random(seed)
    scale = 0.5 if seed % 2 else 1.0
    models = tuple(_model(f"model_{number}", rng, scale) for number in range(count))
    return Workload(devices=Devices(count=count, memory_bytes=16 * GIB), models=models, arrivals="uniform")


def _model(name: str, rng: random.Random, scale: float) -> Model:
    fixed, row = rng.uniform(2, 30), rng.uniform(0.2, 4)
    target = rng.uniform(5, 20) * (fixed + row)
    batch = max(k for k in range(1, 65) if 2 * (fixed + row * k) <= target)
    throughput = batch / (fixed + row * batch) * 1e3
    weights, each = rng.uniform(0.1, 4) * GIB, rng.uniform(0.005, 0.05) * GIB
    return Model(
        name=name,
        rate_per_s=scale * rng.uniform(0.1, 0.9) * throughput,
        target_ms=target,
        latency=Curve.line(fixed, row, 64),
        memory=Curve.line(weights, each, 64),
    )


def uniform(seed: int, count: int) -> Plain:
    """Whole sizes of 20 to 100, all equally likely, in bins of 150 (Falkenauer 1996)."""
    rng = random.Random(seed)
    return Plain(sizes=[rng.randint(20, 100) for _ in range(count)], capacity=CAPACITY)


def triplets(seed: int, bins: int, capacity: int = 1000) -> Plain:
    """Items of a quarter to half a bin, three of which fill each bin exactly (Falkenauer 1996).

    The optimum is `bins`, and in an optimal packing no bin has room left.
    """
    rng = random.Random(seed)
    sizes: list[int] = []
    for _ in range(bins):
        first = rng.randint(380 * capacity // 1000, 490 * capacity // 1000)
        rest = capacity - first
        second = rng.randint(capacity // 4, rest // 2)
        sizes += [first, second, rest - second]
    rng.shuffle(sizes)
    return Plain(sizes=sizes, capacity=capacity)
