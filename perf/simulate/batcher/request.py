"""One request: the properties that matter to the batcher."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Time = int | Fraction
"""Nanoseconds: whole numbers in use, exact fractions in proofs. The simulation only adds, subtracts and compares."""

MS = 1_000_000
US = 1_000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Request:
    """One request, which arrives `at` a time.

    `shapes` maps each input to its shape without the batch axis, `contents` each shape tensor to its values.
    `priority` 0 means the model's default, `timeout` 0 no timeout of its own.
    """

    number: int
    at: Time
    rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    contents: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    priority: int = 0
    timeout: Time = 0
    client: int = 0
