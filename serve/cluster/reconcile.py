"""Which replicas of a deployment to start and which to drain, as a pure function of those that are there."""

from collections.abc import Sequence
from dataclasses import dataclass

# Each start takes a core for a second or more, so more at a time would only make each of them late.
MOST_STARTING = 8


@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica that is to stay: not one that drains or has ended.

    number: the higher, the younger. is_current: it serves the configuration that is wanted now.
    """

    name: str
    number: int
    is_current: bool
    is_ready: bool


@dataclass(frozen=True, kw_only=True)
class Step:
    """How many replicas to start now, and which to drain."""

    start: int = 0
    drain: tuple[str, ...] = ()


def step(members: Sequence[Member], desired: int) -> Step:
    """What brings `members` nearer to `desired` replicas of the current configuration.

    Replicas of another configuration are replaced one by one: a new one starts, gets ready, and then an old one
    drains. So a change of the configuration never leaves fewer than `desired` replicas ready.
    """
    # One that starts with another configuration has no requests yet.
    dropped = [member.name for member in members if not member.is_current and not member.is_ready]
    living = [member for member in members if member.name not in dropped]
    old = [member for member in living if not member.is_current]
    starting = [member for member in living if not member.is_ready]
    start = max(0, desired - len(living))
    if old and not start and not starting and len(living) <= desired:
        start = 1
    if old:
        surplus = len(living) - len(starting) - desired
        leaving = sorted(old, key=lambda member: member.number)
    else:
        surplus = len(living) - desired
        # Those that start go first, then the youngest: its caches are the coldest.
        leaving = sorted(living, key=lambda member: (member.is_ready, -member.number))
    start = min(start, max(0, MOST_STARTING - len(starting)))
    return Step(start=start, drain=(*dropped, *(member.name for member in leaving[: max(0, surplus)])))
