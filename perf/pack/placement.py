"""A placement of models on devices with duty cycles, and its file placement.json."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from perf.records import file

NAME = "placement.json"


@dataclass(frozen=True, kw_only=True)
class Share:
    """One model on one device: `rate_per_s` of its requests, in executions of at most `batch` rows and `exec_ms`."""

    model: str
    rate_per_s: float
    batch: int
    exec_ms: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """One device. Several models take turns, each at most once within `duty_ms`."""

    duty_ms: float
    shares: tuple[Share, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in order."""
        return tuple(share.model for share in self.shares)

    @property
    def takes_turns(self) -> bool:
        """Whether several models share the device."""
        return len(self.shares) > 1

    @property
    def delay_ms(self) -> float:
        """How long a model with less than a batch lets requests wait before it asks for the device.

        With several models it is a whole cycle: no model then executes more often than planned, however far behind
        the others its number of executions is.
        """
        return self.duty_ms if self.takes_turns else 0.0

    def longest_ms(self, share: Share) -> float:
        """The longest time from arrival to answer with even arrivals, in milliseconds."""
        return 2 * self.duty_ms if self.takes_turns else self.duty_ms + share.exec_ms

    @property
    def occupancy(self) -> float:
        """The share of the duty cycle in which the device executes."""
        return sum(share.exec_ms / self.duty_ms for share in self.shares)

    @property
    def memory_bytes(self) -> float:
        """The memory of its models."""
        return sum(share.memory_bytes for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All devices. `bound` is a proven lower bound on their number, if each model's remainder is on one device."""

    KIND: ClassVar[str] = "placement"
    FORMAT: ClassVar[int] = 1

    algorithm: str
    nodes: tuple[Node, ...]
    bound: int
    headroom: float = 0.0

    def write(self, folder: Path) -> Path:
        """Write placement.json, with the occupancy and the memory of each device for other readers."""
        nodes = [asdict(node) | {"occupancy": node.occupancy, "memory_bytes": node.memory_bytes} for node in self.nodes]
        return file.write(self, folder / NAME, nodes=nodes)
