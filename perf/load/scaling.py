"""The factor on the times of a simulated model with which this machine can carry clients and server together."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from perf.records.load_record import CpuTime
from perf.records.offered_load import Load

# The share of the cores that may be busy.
LIMIT = 0.7
# A little below the limit, since no trial repeats another exactly.
AIM = 0.6
TRIES = 6


def trial(load: Load) -> Load:
    """The same load for a short trial."""
    return replace(load, warm_up_s=1.5, duration_s=2.0, requests=None)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A factor on the model's times, and the share of the cores that was busy in the trial with it."""

    factor: float
    busy: float

    @property
    def holds(self) -> bool:
        """Whether the cores were less busy than `LIMIT`."""
        return self.busy < LIMIT

    def __str__(self) -> str:
        return f"times x {self.factor:g}: cores {self.busy:.1%} busy"


def fit(measure: Callable[[float], CpuTime], progress: Callable[[Scale], None] = lambda _: None) -> Scale:
    """The first factor with which the cores are less than 70 % busy, or the sixth; `measure` runs a trial with one.

    The CPU time of a request does not depend on the model's times, so the busy share falls as 1 / factor. It covers
    everything on the machine. `progress` is called after each trial.
    """
    factor = 1.0
    for _ in range(TRIES):
        scale = Scale(factor=factor, busy=measure(factor).all)
        progress(scale)
        if scale.holds:
            break
        # Saturated cores hide how much work there is, so a step is at least 1.5.
        factor = round(factor * max(1.5, scale.busy / AIM), 2)
    return scale
