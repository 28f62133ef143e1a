"""How much slower a stand-in must be so that this machine's cores can carry clients and server at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from perf.load.load import Load
from perf.load.result import CpuTime

LIMIT = 0.7
# A little under the limit, since the next trial will not repeat this one exactly.
AIM = 0.6
TRIES = 6


def trial(load: Load) -> Load:
    """A short run of the same load."""
    return replace(load, warm_up_s=1.5, duration_s=2.0, requests=None)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The factor on the model's times, and the share of the cores that was busy when it was tried."""

    factor: float
    busy: float

    @property
    def holds(self) -> bool:
        """Whether the cores had room."""
        return self.busy < LIMIT

    def __str__(self) -> str:
        return f"times x {self.factor:g}: cores {self.busy:.1%} busy"


def fit(measure: Callable[[float], CpuTime], told: Callable[[Scale], None] = lambda _: None) -> Scale:
    """The first trial in which the cores were busy for less than 70 % of the time; each is `told`.

    CPU time per request does not hang on the model's times, so the busy share falls as 1 / factor. Cores that others
    take are taken too. After six trials the last is taken as it is.
    """
    factor = 1.0
    for _ in range(TRIES):
        tried = Scale(factor=factor, busy=measure(factor).all)
        told(tried)
        if tried.holds:
            break
        # Saturated cores hide how much work there is, so a step is at least a half.
        factor = round(factor * max(1.5, tried.busy / AIM), 2)
    return tried
