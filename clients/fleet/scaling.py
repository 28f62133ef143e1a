"""How much slower a stand-in must be so that this machine's cores can carry clients and server at once."""

from collections.abc import Callable
from dataclasses import replace

from clients.fleet.load import Load
from clients.fleet.result import Busy

LIMIT = 0.7
# A little under the limit, since the next trial will not repeat this one exactly.
AIM = 0.6
TRIES = 6


def trial(load: Load) -> Load:
    """A short run of the same load."""
    return replace(load, warm_up_s=1.5, duration_s=2.0, requests=None)


def fit(measure: Callable[[float], Busy]) -> tuple[float, float]:
    """Factor on the model's times and the share of the cores that was busy with it, at the first trial under 70 %.

    CPU time per request does not hang on the model's times, so the busy share falls as 1 / factor. Cores that others
    take are taken too. After six trials the last is taken as it is.
    """
    factor = 1.0
    for _ in range(TRIES):
        busy = measure(factor).all
        if busy < LIMIT:
            break
        # Saturated cores hide how much work there is, so a step is at least a half.
        factor = round(factor * max(1.5, busy / AIM), 2)
    return factor, busy
