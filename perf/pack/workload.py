"""The workload to pack: devices, and models with latency and memory by batch size, a rate and a latency target."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A quantity of an execution (milliseconds, bytes) at ascending batch `sizes`.

    It is interpolated between two sizes; below the smallest size it has the smallest size's value, an upper bound.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise Mistake(f"batch sizes {list(self.sizes)}: must be ascending integers of at least 1.")
        if any(a > b for a, b in pairwise(self.values)) or min(self.values) < 0:
            raise Mistake(
                f"values {list(self.values)} by batch size: must not fall as the batch grows, and not be negative."
            )

    @classmethod
    def line(cls, fixed: float, row: float, largest: int) -> "Curve":
        """fixed + row x b, for 1 to `largest` rows."""
        sizes = (1,) if largest == 1 else (1, largest)
        return cls(sizes=sizes, values=tuple(fixed + row * size for size in sizes))

    @property
    def largest(self) -> int:
        """The largest batch size."""
        return self.sizes[-1]

    def at(self, rows: int) -> float:
        """The value at `rows`, at most `largest`."""
        return float(np.interp(rows, self.sizes, self.values))


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model: `rate_per_s` requests of one row, each with a latency target of `target_ms`.

    `latency` is the time of an execution on the device in milliseconds. `overhead_ms` is the part of the target for
    network, client, pre- and post-processing. `memory` is the memory in bytes: weights, activations and arena.
    """

    name: str
    rate_per_s: float
    target_ms: float
    latency: Curve
    memory: Curve
    overhead_ms: float = 0.0

    @property
    def device_target_ms(self) -> float:
        """The part of the target for waiting and executing."""
        return self.target_ms - self.overhead_ms

    @property
    def largest(self) -> int:
        """The largest batch size."""
        return self.latency.largest


@dataclass(frozen=True, kw_only=True)
class Devices:
    """`count` equal devices with `memory_bytes` each; `kind` is gpu or cpu, as in Triton's instance groups."""

    count: int
    memory_bytes: float
    kind: str = "gpu"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Devices and models.

    `arrivals` of the replay are poisson, as those of many independent users are, or uniform, as those of a timer are.
    """

    devices: Devices
    models: tuple[Model, ...]
    arrivals: str = "poisson"
