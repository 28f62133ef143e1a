"""The instances of a model: payloads that wait for one, executions that run, and what is merged on the way."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from perf.batcher.payload import Closing, Payload
from perf.batcher.request import Request, Time
from perf.batcher.rules import Rules

ServiceTime = Callable[[int], Time]
"""Time that one execution of so many rows takes."""

Slowdown = Callable[[int, int], float | Fraction]
"""How many times longer an execution of so many rows takes while so many executions run, itself among them."""

Waking = Callable[[Time], Time]
"""Time that an execution takes longer after its instance has been idle for so long."""

Burden = Callable[[int], Time]
"""Time by which a request that arrives makes each of so many executions under way longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution: which requests, where, from when to when, and the rule that closed the batch."""

    instance: int
    start: Time
    end: Time
    rows: int
    requests: tuple[Request, ...]
    closing: Closing


@dataclass(slots=True, eq=False)
class _Running:
    """An execution and when it ends, if as many as now go on running; `slowdown` is what it runs under."""

    execution: Execution
    end: Time
    slowdown: float | Fraction = 1


class Instances:
    """A model's instances and their common queue of payloads.

    Instances that share a device slow each other down: with `slowdown`, whenever an execution starts or ends, what is
    left of the others is stretched to the new number (processor sharing). With `burden`, so does what arrives; with
    `waking` an execution takes longer after a pause. An idle instance is notified of a payload and takes one `dispatch`
    later, what has been added to it meanwhile included; one that has just ended an execution takes one at once.
    """

    def __init__(
        self,
        rules: Rules,
        service: ServiceTime,
        *,
        slowdown: Slowdown | None = None,
        burden: Burden | None = None,
        waking: Waking | None = None,
        dispatch: Time = 0,
    ) -> None:
        self._rules, self._service, self._dispatch = rules, service, dispatch
        self._slowdown, self._burden, self._waking = slowdown, burden, waking
        self._payloads: deque[Payload] = deque()
        self._idle: deque[tuple[int, Time]] = deque((number, 0) for number in range(rules.instances))
        self._notified: deque[tuple[Time, int, Time]] = deque()
        self._running: list[_Running] = []
        self.next_end: Time | None = None
        """When the next execution ends."""
        # Triton's own count of idle instances without a payload; merged payloads are never given back to it.
        self._consumers = rules.instances

    def queue(self, payload: Payload, now: Time) -> None:
        """Take a payload; it may still grow until an instance takes it."""
        self._payloads.append(payload)
        self._consumers -= 1
        if self._idle:
            self._notified.append((now + self._dispatch, *self._idle.popleft()))

    @property
    def next_awake(self) -> Time | None:
        """When the next instance that was notified looks for a payload."""
        return self._notified[0][0] if self._notified else None

    def slot_free(self) -> bool:
        """Whether the batcher may form another payload."""
        if self._rules.prefetches:
            return len(self._payloads) < 2 * self._rules.instances
        return self._consumers > 0

    @property
    def quiet(self) -> bool:
        """Whether nothing runs or waits to."""
        return not self._running and not self._payloads

    def finish(self) -> Execution:
        """End the execution that ends first; its instance is not yet idle."""
        first = min(self._running, key=lambda one: (one.end, one.execution.instance))
        self._running.remove(first)
        self._share(first.end)
        return first.execution if first.end == first.execution.end else replace(first.execution, end=first.end)

    def release(self, execution: Execution, now: Time) -> None:
        """Its instance looks for the next payload."""
        self._notified.appendleft((now, execution.instance, now))
        self._consumers += 1

    def start(self, now: Time) -> Execution | None:
        """Begin one execution where an instance is awake and a payload waits; where none does, it is idle again."""
        while self._notified and self._notified[0][0] <= now and not self._payloads:
            self._idle.append(self._notified.popleft()[1:])
        if not self._notified or self._notified[0][0] > now:
            return None
        payload = self._payloads.popleft()
        payload.taken = True
        self._merge(payload, now)
        _, instance, since = self._notified.popleft()
        takes = self._service(payload.rows) + (self._waking(now - since) if self._waking else 0)
        execution = Execution(
            instance=instance,
            start=now,
            end=now + takes,
            rows=payload.rows,
            requests=tuple(one.request for one in payload.requests),
            closing=payload.closing,
        )
        self._running.append(_Running(execution, execution.end))
        self._share(now)
        return execution

    def burden(self) -> None:
        """A request has arrived: what is under way takes so much longer."""
        if self._burden is not None and self._running and (longer := self._burden(len(self._running))):
            for one in self._running:
                one.end += longer
            self.next_end = min(one.end for one in self._running)

    def _share(self, now: Time) -> None:
        """Let the executions go on at the speed that they have with as many as run now."""
        if self._slowdown is not None:
            for one in self._running:
                slowdown = self._slowdown(one.execution.rows, len(self._running))
                if slowdown != one.slowdown:
                    left = (one.end - now) * slowdown / one.slowdown
                    one.end = now + (left if isinstance(left, Fraction) else round(left))
                    one.slowdown = slowdown
        self.next_end = min([one.end for one in self._running], default=None)

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
