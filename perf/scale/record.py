"""The record of simulated days: the replica's curve, what was assumed, and every target that was tried."""

from dataclasses import dataclass
from typing import ClassVar

from perf.scale.comparison import Tried
from perf.scale.curve import ReplicaCurve
from perf.scale.fleet import Conditions


@dataclass(frozen=True, kw_only=True)
class ScaleRecord:
    """Days of one deployment.

    trace: where the rates come from. days: how many. share: the goal of the requests in time.
    peak_per_s: the highest rate of the days, 0 in older records.
    target_pending: the target of our rule that reaches the goal on every day; None if none does.
    """

    KIND: ClassVar[str] = "scale"
    FORMAT: ClassVar[int] = 1
    command: tuple[str, ...]
    deployment: str
    trace: str
    days: int
    step_s: float
    least: int
    most: int
    share: float
    conditions: Conditions
    curve: ReplicaCurve
    tried: tuple[Tried, ...]
    target_pending: float | None
    peak_per_s: float = 0.0
