"""The batcher's queue: requests by priority level in order of arrival; its policies reject or delay late ones."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.rules import QueuePolicy, Rules


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request with its time of arrival, its deadline, and what it must share with others in a batch."""

    request: Request
    since: Time
    deadline: Time | None
    batch_key: tuple[object, ...]


@dataclass(slots=True)
class _Level:
    policy: QueuePolicy
    waiting: list[QueuedRequest] = field(default_factory=list)
    late: list[QueuedRequest] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.late)


class RequestQueue:
    """The waiting requests of one model."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._levels: dict[int, _Level] = {}
        self._size = 0
        self.rejected: list[Request] = []

    def __len__(self) -> int:
        return self._size

    @property
    def has_deadlines(self) -> bool:
        """Whether a waiting request can still be rejected by time alone."""
        rejecting = [level for level in self._levels.values() if not level.policy.delay_late]
        return any(queued.deadline is not None for level in rejecting for queued in level.waiting)

    def add(self, request: Request, now: Time) -> bool:
        """Queue a request; returns False if its level is full."""
        number = self._rules.level(request)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._rules.policy_of(number))
            self._levels = dict(sorted(self._levels.items()))
        if level.policy.max_size and len(level) >= level.policy.max_size:
            return False
        deadline = level.policy.deadline(request, now)
        level.waiting.append(QueuedRequest(request, now, deadline, self._rules.batch_key(request)))
        self._size += 1
        return True

    def candidates(self, now: Time) -> Iterator[QueuedRequest]:
        """Yield requests in the order in which a batch takes them; late ones are moved or rejected on the way.

        Levels do not close a batch: after the last request of a level comes the first of the next.
        """
        for level in list(self._levels.values()):
            index = 0
            while index < len(level.waiting):
                queued = level.waiting[index]
                if not _is_late(queued, now):
                    yield queued
                    index += 1
                elif level.policy.delay_late:
                    queued.deadline = None
                    level.late.append(level.waiting.pop(index))
                else:
                    self._reject(level, index)
            yield from level.late

    def take(self, count: int) -> list[QueuedRequest]:
        """Remove and return the first `count` requests, in the order of `candidates`."""
        taken: list[QueuedRequest] = []
        for level in self._levels.values():
            for part in (level.waiting, level.late):
                first = part[: count - len(taken)]
                del part[: len(first)]
                taken += first
        self._size -= len(taken)
        return taken

    def reject_late(self, now: Time) -> None:
        """Reject every late request in levels that reject."""
        for level in self._levels.values():
            if not level.policy.delay_late:
                for index in reversed([i for i, queued in enumerate(level.waiting) if _is_late(queued, now)]):
                    self._reject(level, index)

    def _reject(self, level: _Level, index: int) -> None:
        self.rejected.append(level.waiting.pop(index).request)
        self._size -= 1


def _is_late(queued: QueuedRequest, now: Time) -> bool:
    # Triton compares with >, but a thread that sleeps until the deadline wakes a little after it.
    return queued.deadline is not None and now >= queued.deadline
