"""A placement of models on devices with duty cycles, and its file placement.json."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from perf.records.file import UNREADABLE
from perf.records.record import RecordError, write_json

T = TypeVar("T")

FORMAT = 1
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
    """One device. Its models take turns, each once within `duty_ms`.

    With `together` they run at the same time, each in its own cycle; their execution times include the measured
    interference.
    """

    duty_ms: float
    shares: tuple[Share, ...]
    together: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in order."""
        return tuple(share.model for share in self.shares)

    @property
    def occupancy(self) -> float:
        """The share of the duty cycle in which the device executes; the larger one if two models run together."""
        parts = [share.exec_ms / self.duty_ms for share in self.shares]
        return max(parts) if self.together else sum(parts)

    @property
    def memory_bytes(self) -> float:
        """The memory of its models."""
        return sum(share.memory_bytes for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All devices. `bound` is a proven lower bound on their number, if each model's remainder is on one device."""

    algorithm: str
    nodes: tuple[Node, ...]
    bound: int
    headroom: float = 0.0

    def write(self, folder: Path) -> Path:
        """Write placement.json."""
        nodes = [asdict(node) | {"occupancy": node.occupancy, "memory_bytes": node.memory_bytes} for node in self.nodes]
        content = {"format": FORMAT, "kind": "placement", **asdict(self), "nodes": nodes}
        return write_json(NAME, content, folder)

    @classmethod
    def read(cls, path: Path) -> "Placement":
        """Read a placement; raises `RecordError`."""
        return read_record(path, cls, kind="placement", remedy="Pack again.")


class _Head(msgspec.Struct):
    format: int
    kind: str


def read_record(path: Path, record: type[T], *, kind: str, remedy: str) -> T:
    """Read a record of this type from a file of this `kind`; raises `RecordError`, which ends with `remedy`."""
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        if (head.format, head.kind) != (FORMAT, kind):
            raise msgspec.ValidationError(f"kind {head.kind}, format {head.format}")
        return msgspec.json.decode(data, type=record)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}). {remedy}") from error
    except UNREADABLE as error:
        raise RecordError(f"{path}: not a record of kind {kind}, format {FORMAT} ({error}). {remedy}") from error
