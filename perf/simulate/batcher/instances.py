"""A model's instances: the queue of payloads, the merging of payloads, and the running executions."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from perf.simulate.batcher.payload import Closing, Payload
from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.rules import Rules

ServiceTime = Callable[[int], Time]
"""Time of an execution by its rows."""

Duration = Callable[[Sequence[Request]], Time]
"""Time of an execution by its requests, where their lengths matter."""

Slowdown = Callable[[int, int], float | Fraction]
"""Factor on the time of an execution, by its rows and by the number of running executions, itself included."""

Waking = Callable[[Time], Time]
"""Extra time of an execution, by how long its instance was idle before."""

Burden = Callable[[int], Time]
"""Extra time that an arriving request adds to each running execution, by their number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution: its instance, times and requests, and the rule that closed the batch."""

    instance: int
    start: Time
    end: Time
    rows: int
    requests: tuple[Request, ...]
    closing: Closing


@dataclass(slots=True, eq=False)
class _Running:
    """An execution, its end if the number of running executions stays as it is, and its present slowdown."""

    execution: Execution
    end: Time
    slowdown: float | Fraction = 1


class Instances:
    """A model's instances and their common queue of payloads.

    Instances that share a device slow each other down. With `slowdown`, each start or end of an execution stretches
    the rest of the others to their new number (processor sharing); with `burden`, each arrival makes them longer; with
    `waking`, a pause makes the next execution longer. An idle instance takes a payload `dispatch` after it was queued,
    with the requests added meanwhile. An instance that ends an execution takes its next payload at once.
    """

    def __init__(
        self,
        rules: Rules,
        service: ServiceTime,
        *,
        duration: Duration | None = None,
        slowdown: Slowdown | None = None,
        burden: Burden | None = None,
        waking: Waking | None = None,
        dispatch: Time = 0,
    ) -> None:
        self._rules, self._service, self._duration, self._dispatch = rules, service, duration, dispatch
        self._slowdown, self._burden, self._waking = slowdown, burden, waking
        self._payloads: deque[Payload] = deque()
        self._idle: deque[tuple[int, Time]] = deque((number, 0) for number in range(rules.instances))
        self._notified: deque[tuple[Time, int, Time]] = deque()
        self._running: list[_Running] = []
        self.next_end: Time | None = None
        """End of the execution that ends first."""
        # Triton's own count of idle instances without a payload; it never counts merged payloads back.
        self._consumers = rules.instances

    def queue(self, payload: Payload, now: Time) -> None:
        """Add a payload; it may grow until an instance takes it."""
        self._payloads.append(payload)
        self._consumers -= 1
        if self._idle:
            self._notified.append((now + self._dispatch, *self._idle.popleft()))

    @property
    def next_awake(self) -> Time | None:
        """When the next notified instance looks for a payload."""
        return self._notified[0][0] if self._notified else None

    def slot_free(self) -> bool:
        """Return whether the batcher may form another payload."""
        if self._rules.prefetches:
            return len(self._payloads) < 2 * self._rules.instances
        return self._consumers > 0

    @property
    def quiet(self) -> bool:
        """Whether nothing runs and no payload waits."""
        return not self._running and not self._payloads

    def finish(self) -> Execution:
        """End and return the execution that ends first; its instance is not yet idle."""
        first = min(self._running, key=lambda running: (running.end, running.execution.instance))
        self._running.remove(first)
        self._share(first.end)
        return first.execution if first.end == first.execution.end else replace(first.execution, end=first.end)

    def release(self, execution: Execution, now: Time) -> None:
        """Let the execution's instance look for the next payload."""
        self._notified.appendleft((now, execution.instance, now))
        self._consumers += 1

    def start(self, now: Time) -> Execution | None:
        """Start an execution if an instance is awake and a payload waits; without a payload it is idle again."""
        while self._notified and self._notified[0][0] <= now and not self._payloads:
            self._idle.append(self._notified.popleft()[1:])
        if not self._notified or self._notified[0][0] > now:
            return None
        payload = self._payloads.popleft()
        payload.taken = True
        self._merge(payload, now)
        _, instance, since = self._notified.popleft()
        requests = tuple(queued.request for queued in payload.requests)
        duration = self._duration(requests) if self._duration else self._service(payload.rows)
        duration += self._waking(now - since) if self._waking else 0
        execution = Execution(
            instance=instance,
            start=now,
            end=now + duration,
            rows=payload.rows,
            requests=requests,
            closing=payload.closing,
        )
        self._running.append(_Running(execution, execution.end))
        self._share(now)
        return execution

    def burden(self) -> None:
        """Make the running executions longer, because a request has arrived."""
        if self._burden is not None and self._running and (longer := self._burden(len(self._running))):
            for running in self._running:
                running.end += longer
            self.next_end = min(running.end for running in self._running)

    def _share(self, now: Time) -> None:
        """Stretch or shrink what is left of each execution to the present number of executions."""
        if self._slowdown is not None:
            for running in self._running:
                slowdown = self._slowdown(running.execution.rows, len(self._running))
                if slowdown != running.slowdown:
                    left = (running.end - now) * slowdown / running.slowdown
                    running.end = now + (left if isinstance(left, Fraction) else round(left))
                    running.slowdown = slowdown
        self.next_end = min([running.end for running in self._running], default=None)

    def _merge(self, payload: Payload, now: Time) -> None:
        """With a delay configured, also take the next payloads that are older than the delay and fit."""
        if not self._rules.delay or self._rules.max_batch_size <= 1 or payload.sealed:
            return
        while self._payloads:
            other = self._payloads[0]
            if other.sealed or now - other.since <= self._rules.delay:
                return
            other.taken = True  # nothing is added to it from now on, even if it does not fit
            if payload.rows + other.rows > self._rules.max_batch_size or payload.batch_key != other.batch_key:
                return
            self._payloads.popleft()
            payload.add(other.requests)
            payload.closing = other.closing
