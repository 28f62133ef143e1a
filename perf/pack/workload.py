"""What is to be packed: devices, and models with a latency curve, a rate, a latency target and the memory they hold."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A quantity of an execution (milliseconds, bytes) by its rows, measured at `sizes`, which rise.

    Between two sizes it is on a straight line; below the smallest it is the smallest's, which bounds it from above.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise Mistake(f"batch sizes {list(self.sizes)}: must be whole numbers from 1 that rise.")
        if any(a > b for a, b in pairwise(self.values)) or min(self.values) < 0:
            raise Mistake(
                f"values {list(self.values)} by batch size: must not fall as the batch grows, nor be negative."
            )

    @classmethod
    def line(cls, fixed: float, row: float, largest: int) -> "Curve":
        """fixed + row x b, for 1 to `largest` rows."""
        sizes = (1,) if largest == 1 else (1, largest)
        return cls(sizes=sizes, values=tuple(fixed + row * size for size in sizes))

    @property
    def largest(self) -> int:
        """The largest measured batch."""
        return self.sizes[-1]

    def at(self, rows: int) -> float:
        """The value for so many rows, at most `largest`."""
        return float(np.interp(rows, self.sizes, self.values))


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model: `rate_per_s` requests of one row a second, each to be answered within `sla_ms`.

    `latency` is the time in milliseconds that the device is taken by an execution. `overhead_ms` of the target go to
    what lies outside the device: network, the client, pre- and post-processing. `memory` is what it holds with batches
    of so many rows: weights, activations, arena.
    """

    name: str
    rate_per_s: float
    sla_ms: float
    latency: Curve
    memory: Curve
    overhead_ms: float = 0.0

    @property
    def budget_ms(self) -> float:
        """What of the target is left for waiting and executing."""
        return self.sla_ms - self.overhead_ms

    @property
    def largest(self) -> int:
        """Most rows of one execution."""
        return self.latency.largest


@dataclass(frozen=True, kw_only=True)
class Devices:
    """`count` equal devices of `memory_bytes` each; `kind` gpu or cpu, as Triton's instance groups have it."""

    count: int
    memory_bytes: float
    kind: str = "gpu"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two models that run at the same time on one device: what executions take together over alone, 1 or more."""

    models: tuple[str, str]
    factors: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Devices and models; `pairs` of models may run concurrently. `arrivals` is uniform or poisson, for the replay."""

    devices: Devices
    models: tuple[Model, ...]
    pairs: tuple[Pair, ...] = ()
    arrivals: str = "uniform"

    def model(self, name: str) -> Model:
        """The model of that name; raises `KeyError`."""
        return {one.name: one for one in self.models}[name]


def raised(model: Model, headroom: float) -> Model:
    """The same with (1 + headroom) times its rate."""
    return replace(model, rate_per_s=model.rate_per_s * (1 + headroom))
