"""Which waiting requests run together: the rules of Triton's dynamic batcher, for instances that take batches.

An instance that is free takes the next batch. Triton's batcher forms it ahead and lets it grow until an instance takes
it, which comes to the same.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.inprocess.request import Refused, Request

TOO_MANY = "Exceeds maximum queue size"


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """The limits of one priority level; 0 is no limit. A request's own timeout counts if it is the shorter one."""

    size: int
    timeout_s: float
    overridable: bool

    def expires(self, request: Request, now: float) -> float | None:
        """When a request that is queued now is given up, on the monotonic clock; None for never."""
        timeout_s = self.timeout_s
        if self.overridable and 0 < request.timeout() / 1e6 < timeout_s:
            timeout_s = request.timeout() / 1e6
        return now + timeout_s if timeout_s else None


class Batches:
    """The waiting requests of one model, by priority and then in order of arrival."""

    def __init__(self, config: ModelConfig) -> None:
        batching = config.dynamic_batching
        self._most = max(1, config.max_batch_size) if config.HasField("dynamic_batching") else 1
        self._preferred = frozenset(batching.preferred_batch_size) or frozenset([self._most])
        self._delay_s = batching.max_queue_delay_microseconds / 1e6
        self._default_level = batching.default_priority_level
        policies = dict.fromkeys(range(1, batching.priority_levels + 1), batching.default_queue_policy)
        policies |= {level: policy for level, policy in batching.priority_queue_policy.items() if level in policies}
        policies = policies or {0: batching.default_queue_policy}
        self._limits = {
            level: QueueLimits(
                size=policy.max_queue_size,
                timeout_s=policy.default_timeout_microseconds / 1e6,
                overridable=policy.allow_timeout_override,
            )
            for level, policy in policies.items()
        }
        self._waiting: dict[int, deque[Request]] = {level: deque() for level in policies}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False

    def put(self, request: Request) -> bool:
        """Queue a request; False if the queue is closed. Raises `Refused` if it is full."""
        level = request.priority if request.priority in self._waiting else self._default_level
        limits, waiting = self._limits[level], self._waiting[level]
        with self._changed:
            if self._closed:
                return False
            if limits.size and len(waiting) >= limits.size:
                raise Refused("UNAVAILABLE", request.marked(TOO_MANY))
            request.arrived = time.monotonic()
            request.expires = limits.expires(request, request.arrived)
            waiting.append(request)
            self._changed.notify()
        return True

    def remove(self, request: Request) -> bool:
        """Take a request out; False if it no longer waits."""
        with self._changed:
            for waiting in self._waiting.values():
                if request in waiting:
                    waiting.remove(request)
                    return True
        return False

    def count(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._waiting.values()))

    def take(self) -> list[Request] | None:
        """Wait for the next batch; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                count, wait_s = self._choose(time.monotonic())
                if count:
                    return self._first(count)
                self._changed.wait(wait_s)
        return None

    def close(self) -> Sequence[Request]:
        """End the queue; returns the requests that waited."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._first(self.count())

    def _choose(self, now: float) -> tuple[int, float | None]:
        """How many requests to take; if none, how long to wait for more, None for any time."""
        count = rows = best = 0
        oldest, key, ended = now, None, False
        largest = max(self._preferred)
        for request in (request for waiting in self._waiting.values() for request in waiting):
            if count:
                total = rows + request.rows
                if not best and total > largest:
                    best = count
                if total > self._most or request.key != key:
                    ended = True
                    break
            count, rows, key = count + 1, rows + request.rows, request.key
            oldest = min(oldest, request.arrived)
            if rows in self._preferred:
                best = count
        if not count:
            return 0, None
        over = self._delay_s > 0 and now - oldest >= self._delay_s
        if best and not over:
            return best, None
        if over or ended or not self._delay_s or rows >= largest:
            return count, None
        return 0, oldest + self._delay_s - now

    def _first(self, count: int) -> list[Request]:
        taken: list[Request] = []
        for waiting in self._waiting.values():
            while waiting and len(taken) < count:
                taken.append(waiting.popleft())
        return taken
