"""The batcher's queue: requests by priority level, in order of arrival, and those that its policies take out of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from perf.batcher.request import Request, Time
from perf.batcher.rules import QueuePolicy, Rules


@dataclass(slots=True, eq=False)
class Waiting:
    """A queued request: since when it waits and when it is late."""

    request: Request
    since: Time
    deadline: Time | None
    likeness: tuple[object, ...]


@dataclass(slots=True)
class _Level:
    policy: QueuePolicy
    waiting: list[Waiting] = field(default_factory=list)
    late: list[Waiting] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.late)


class Queue:
    """All waiting requests of one model."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._levels: dict[int, _Level] = {}
        self._size = 0
        self.rejected: list[Request] = []

    def __len__(self) -> int:
        return self._size

    @property
    def has_deadlines(self) -> bool:
        """Whether time alone can still take a request out."""
        rejecting = [level for level in self._levels.values() if not level.policy.delay_late]
        return any(one.deadline is not None for level in rejecting for one in level.waiting)

    def add(self, request: Request, now: Time) -> bool:
        """Queue a request; False where its level is full."""
        number = self._rules.level(request)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._rules.policy_of(number))
            self._levels = dict(sorted(self._levels.items()))
        if level.policy.max_size and len(level) >= level.policy.max_size:
            return False
        deadline = level.policy.deadline(request, now)
        level.waiting.append(Waiting(request, now, deadline, self._rules.likeness(request)))
        self._size += 1
        return True

    def candidates(self, now: Time) -> Iterator[Waiting]:
        """Requests in the order in which a batch takes them; one that turns out late is moved or rejected on the way.

        Levels do not close a batch: after the last request of one comes the first of the next.
        """
        for level in list(self._levels.values()):
            index = 0
            while index < len(level.waiting):
                one = level.waiting[index]
                if not _is_late(one, now):
                    yield one
                    index += 1
                elif level.policy.delay_late:
                    one.deadline = None
                    level.late.append(level.waiting.pop(index))
                else:
                    self._reject(level, index)
            yield from level.late

    def take(self, count: int) -> list[Waiting]:
        """Remove the first `count` requests, in the order of `candidates`."""
        taken: list[Waiting] = []
        for level in self._levels.values():
            for part in (level.waiting, level.late):
                some = part[: count - len(taken)]
                del part[: len(some)]
                taken += some
        self._size -= len(taken)
        return taken

    def reject_late(self, now: Time) -> None:
        """Reject every late request of the levels that reject."""
        for level in self._levels.values():
            if not level.policy.delay_late:
                for index in reversed([i for i, one in enumerate(level.waiting) if _is_late(one, now)]):
                    self._reject(level, index)

    def _reject(self, level: _Level, index: int) -> None:
        self.rejected.append(level.waiting.pop(index).request)
        self._size -= 1


def _is_late(one: Waiting, now: Time) -> bool:
    # Triton compares with >, and a thread that was to wake at the deadline wakes a little after it.
    return one.deadline is not None and now >= one.deadline
