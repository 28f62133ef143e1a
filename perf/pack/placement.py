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
    """One device. Its models take turns, each once within `duty_ms`."""

    duty_ms: float
    shares: tuple[Share, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in order."""
        return tuple(share.model for share in self.shares)

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
