"""Where every model runs: devices with their duty cycles, and placement.json, which holds them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from perf.records.record import write_json
from triton_batching.terminal import Mistake

FORMAT = 1
NAME = "placement.json"


@dataclass(frozen=True, kw_only=True)
class Share:
    """One model on one device: `rate_per_s` of its requests, at most `batch` rows in an execution of `exec_ms`."""

    model: str
    rate_per_s: float
    batch: int
    exec_ms: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """One device, whose models take turns, each once in at most `duty_ms`.

    With `together` they run at the same time, each in a cycle of its own, with execution times that hold the measured
    interference.
    """

    duty_ms: float
    shares: tuple[Share, ...]
    together: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(one.model for one in self.shares)

    @property
    def occupancy(self) -> float:
        """Share of the duty cycle in which the device executes; of the fuller one where two run together."""
        parts = [one.exec_ms / self.duty_ms for one in self.shares]
        return max(parts) if self.together else sum(parts)

    @property
    def memory_bytes(self) -> float:
        """What its models hold."""
        return sum(one.memory_bytes for one in self.shares)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All devices. At least `bound` are needed: proven, with every model's remainder on one device."""

    algorithm: str
    nodes: tuple[Node, ...]
    bound: int
    headroom: float = 0.0

    def write(self, folder: Path) -> Path:
        """placement.json, whole or not at all."""
        nodes = [asdict(node) | {"occupancy": node.occupancy, "memory_bytes": node.memory_bytes} for node in self.nodes]
        content = {"format": FORMAT, "kind": "placement", **asdict(self), "nodes": nodes}
        return write_json(NAME, content, folder)

    @classmethod
    def read(cls, path: Path) -> "Placement":
        """A written one; raises `Mistake`."""
        try:
            content = json.loads(path.read_text())
            if (content.pop("format"), content.pop("kind")) != (FORMAT, "placement"):
                raise ValueError("another kind or format")
            return cls(**content | {"nodes": tuple(_node(one) for one in content["nodes"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Mistake(f"{path}: not a placement of this version ({error}). Pack again.") from error


def _node(content: Mapping[str, object]) -> Node:
    kept = {name: value for name, value in content.items() if name not in ("occupancy", "memory_bytes")}
    shares = tuple(Share(**one) for one in kept.pop("shares"))  # type: ignore[attr-defined]
    return Node(shares=shares, **kept)  # type: ignore[arg-type]
