"""The instances of a model: payloads that wait for one, executions that run, and what is merged on the way."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from serve.batcher.payload import Closing, Payload
from serve.batcher.request import Request, Time
from serve.batcher.rules import Rules

ServiceTime = Callable[[int], Time]
"""Time that one execution of so many rows takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution: which requests, where, from when to when, and the rule that closed the batch."""

    instance: int
    start: Time
    end: Time
    rows: int
    requests: tuple[Request, ...]
    closing: Closing


class Instances:
    """A model's instances and their common queue of payloads."""

    def __init__(self, rules: Rules, service: ServiceTime) -> None:
        self._rules, self._service = rules, service
        self._payloads: deque[Payload] = deque()
        self._idle = deque(range(rules.instances))
        self._running: list[tuple[Time, int, Execution]] = []
        # Triton's own count of idle instances without a payload; merged payloads are never given back to it.
        self._consumers = rules.instances

    def queue(self, payload: Payload) -> None:
        """Take a payload; it may still grow until an instance takes it."""
        self._payloads.append(payload)
        self._consumers -= 1

    def slot_free(self) -> bool:
        """Whether the batcher may form another payload."""
        if self._rules.prefetches:
            return len(self._payloads) < 2 * self._rules.instances
        return self._consumers > 0

    @property
    def next_end(self) -> Time | None:
        """When the next execution ends."""
        return self._running[0][0] if self._running else None

    def finish(self) -> Execution:
        """End the execution that ends first; its instance is not yet idle."""
        return heapq.heappop(self._running)[2]

    def release(self, execution: Execution) -> None:
        """Its instance is idle again."""
        self._idle.append(execution.instance)
        self._consumers += 1

    def start(self, now: Time) -> Execution | None:
        """Begin one execution where an instance is idle and a payload waits."""
        if not self._idle or not self._payloads:
            return None
        payload = self._payloads.popleft()
        payload.taken = True
        self._merge(payload, now)
        execution = Execution(
            instance=self._idle.popleft(),
            start=now,
            end=now + self._service(payload.rows),
            rows=payload.rows,
            requests=tuple(one.request for one in payload.requests),
            closing=payload.closing,
        )
        heapq.heappush(self._running, (execution.end, execution.instance, execution))
        return execution

    def _merge(self, payload: Payload, now: Time) -> None:
        """With a delay, an instance also takes the next payloads that are older than it, as far as they fit."""
        if not self._rules.delay or self._rules.max_batch_size <= 1 or payload.sealed:
            return
        while self._payloads:
            other = self._payloads[0]
            if other.sealed or now - other.since <= self._rules.delay:
                return
            other.taken = True  # even where it does not fit, nothing is added to it from now on
            if payload.rows + other.rows > self._rules.max_batch_size or payload.likeness != other.likeness:
                return
            self._payloads.popleft()
            payload.add(other.requests)
            payload.closing = other.closing
