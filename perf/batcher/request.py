"""What arrives at the batcher: one request, as far as batching looks at it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Time = int | Fraction
"""Nanoseconds, whole in use and exact fractions in proofs: the simulation only adds, subtracts and compares."""

MS = 1_000_000
US = 1_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Request:
    """One request.

    `shapes` holds each input's shape without the batch axis, `contents` the values of those inputs that a shape tensor
    is compared by. `priority` 0 means the model's default; `timeout` 0 means none of its own.
    """

    number: int
    at: Time
    rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    contents: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    priority: int = 0
    timeout: Time = 0
    client: int = 0
