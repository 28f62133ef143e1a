"""The discrete-event simulation: arrivals, the batcher's thread and the instances on one clock.

Events at one instant happen in this order: ends of executions, arrivals, the batcher, instances that wake up. The
batcher's own steps take no time.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from perf.simulate.batcher.instances import Burden, Duration, Execution, Instances, ServiceTime, Slowdown, Waking
from perf.simulate.batcher.payload import Closing, ClosingRule, Payload
from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_queue import QueuedRequest
from perf.simulate.batcher.request_source import Answer, RequestSource
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.scheduler import Batcher

Gap = Callable[[int], Time]
"""Time that an instance stays busy after an execution, by its rows."""

Race = Callable[[], bool]
"""Whether the batcher is faster than the instance at the end of an execution."""

LATE = "Request timeout expired"
TOO_MANY = "Exceeds maximum queue size"


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """The result of a simulation: executions in order of their start, answers in order of their time.

    `stuck` counts requests that would wait for ever, since the batcher holds them for more requests than came.
    """

    executions: tuple[Execution, ...]
    answers: tuple[Answer, ...]
    stuck: int = 0

    @property
    def rows_per_execution(self) -> float:
        """Mean rows per execution; 0 without executions."""
        return sum(execution.rows for execution in self.executions) / len(self.executions) if self.executions else 0.0

    @property
    def sizes(self) -> dict[int, int]:
        """Number of executions by their rows, as in the server's batch statistics."""
        return dict(sorted(Counter(execution.rows for execution in self.executions).items()))

    @property
    def served(self) -> list[Answer]:
        """Answers without an error."""
        return [answer for answer in self.answers if not answer.error]

    @property
    def refused(self) -> Counter[str]:
        """Number of refused requests by error."""
        return Counter(answer.error for answer in self.answers if answer.error)

    @property
    def makespan(self) -> Time:
        """From the first arrival to the last answer."""
        if not self.answers:
            return 0
        return max(answer.at for answer in self.answers) - min(answer.request.at for answer in self.answers)

    @property
    def mean_latency(self) -> Fraction:
        """Mean time from arrival to answer of the served requests; 0 without any."""
        served = self.served
        return Fraction(sum(answer.latency for answer in served)) / len(served) if served else Fraction(0)

    def first(self, count: int) -> "SimulationResult":
        """Return the outcome of the requests numbered 1 to `count`, with their executions."""
        return replace(
            self,
            executions=tuple(
                execution
                for execution in self.executions
                if any(request.number <= count for request in execution.requests)
            ),
            answers=tuple(answer for answer in self.answers if answer.request.number <= count),
        )

    def latency_quantile(self, q: float) -> Time:
        """Return the latency that the share `q` of the served requests does not exceed; 0 without any."""
        latencies = sorted(answer.latency for answer in self.served)
        return latencies[min(len(latencies) - 1, int(q * len(latencies)))] if latencies else 0


def simulate(
    rules: Rules,
    service: ServiceTime,
    load: RequestSource,
    *,
    duration: Duration | None = None,
    slowdown: Slowdown | None = None,
    burden: Burden | None = None,
    gap: Gap | None = None,
    race: Race | None = None,
    waking: Waking | None = None,
    dispatch: Time = 0,
    lateness: Time = 0,
) -> SimulationResult:
    """Simulate `load` to its end.

    Args:
        rules: the batcher's rules.
        service: time of an execution that runs alone, by its rows.
        load: the requests.
        duration: the same by its requests, instead of `service` (None: only their rows matter).
        slowdown: factor on that time while other executions run (None: instances do not disturb each other).
        burden: extra time that each arriving request adds to the running executions.
        gap: time that an instance stays busy after an execution; requests that arrive in it may join its next batch.
        race: whether the batcher adds what waits to a payload before the instance that ended takes it (None: never).
        waking: extra time of an execution after a pause.
        dispatch: time that an idle instance needs to take a batch, which may grow meanwhile.
        lateness: time after which the batcher sees the end of a delay.
    """
    instances = Instances(
        rules, service, duration=duration, slowdown=slowdown, burden=burden, waking=waking, dispatch=dispatch
    )
    return _Simulation(rules, load, instances, gap, race, lateness).run()


class _Simulation:
    def __init__(
        self,
        rules: Rules,
        load: RequestSource,
        instances: Instances,
        gap: Gap | None,
        race: Race | None,
        lateness: Time,
    ) -> None:
        self._rules, self._load, self._instances, self._gap, self._race = rules, load, instances, gap, race
        self._recovering: list[tuple[Time, int, Execution]] = []
        self._batcher = Batcher(rules, send=self._send, slot_free=self._instances.slot_free, lateness=lateness)
        self._order: deque[Request] = deque()
        self._done: dict[int, Answer] = {}
        self._executions: list[Execution] = []
        self._latest: dict[int, int] = {}
        self._answers: list[Answer] = []
        self._serial = itertools.count()
        self._source = iter(load.arrivals())
        self._arrivals: list[tuple[Time, int, Request]] = []
        self._now: Time = 0

    def run(self) -> SimulationResult:
        self._arrive(itertools.islice(self._source, 1))
        while (now := self._next_time()) is not None:
            self._now = now
            while self._instances.next_end == now:
                self._finish(self._instances.finish())
            while self._recovering and self._recovering[0][0] == now:
                self._release(heapq.heappop(self._recovering)[2])
            notified = False
            while self._arrivals and self._arrivals[0][0] <= now:
                request = heapq.heappop(self._arrivals)[2]
                self._arrive(itertools.islice(self._source, 1))
                notified |= self._enqueue(request)
            if notified or (self._rules.dynamic and self._batcher.queue and self._batcher.wakes_at <= now):
                self._wake()
            self._start()
        return SimulationResult(
            executions=tuple(self._executions), answers=tuple(self._answers), stuck=len(self._batcher.queue)
        )

    def _next_time(self) -> Time | None:
        earliest = self._arrivals[0][0] if self._arrivals else None
        end = self._instances.next_end
        if end is not None and (earliest is None or end < earliest):
            earliest = end
        if self._recovering and (earliest is None or self._recovering[0][0] < earliest):
            earliest = self._recovering[0][0]
        awake = self._instances.next_awake
        if awake is not None and (earliest is None or awake < earliest):
            earliest = awake
        if self._batcher.queue and (earliest is not None or not self._is_stuck()):
            wakes_at = self._batcher.wakes_at
            if earliest is None or wakes_at < earliest:
                earliest = wakes_at
        return earliest

    def _is_stuck(self) -> bool:
        """Return whether the batcher waits for something that will never happen, as no other event is left."""
        batcher = self._batcher
        if batcher.holding:
            return len(batcher.queue) < batcher.holding
        return batcher.waits_for_slot and not self._instances.slot_free() and not batcher.queue.has_deadlines

    def _arrive(self, requests: Iterable[Request]) -> None:
        for request in requests:
            heapq.heappush(self._arrivals, (request.at, next(self._serial), request))

    def _enqueue(self, request: Request) -> bool:
        """Queue a request; returns whether the batcher must look."""
        self._instances.burden()
        if self._rules.dynamic:
            wake = self._batcher.enqueue(request, self._now)
            if wake is None:
                self._answer(Answer(request=request, at=self._now, error=TOO_MANY))
            return bool(wake)
        payload = Payload(queued=True, closing=Closing(rule=ClosingRule.NOT_DYNAMIC))
        payload.add([QueuedRequest(request, self._now, None, ())])
        self._send(payload)
        return False

    def _send(self, payload: Payload) -> None:
        self._instances.queue(payload, self._now)

    def _wake(self) -> None:
        self._batcher.wake(self._now)
        for request in self._batcher.queue.rejected:
            self._answer(Answer(request=request, at=self._now, error=LATE))
        self._batcher.queue.rejected.clear()

    def _start(self) -> None:
        """Let idle instances take payloads; after each, the batcher is notified and may form another."""
        while (execution := self._instances.start(self._now)) is not None:
            self._latest[execution.instance] = len(self._executions)
            self._executions.append(execution)
            if self._rules.preserve_ordering:
                self._order.extend(execution.requests)
            if self._rules.dynamic:
                self._wake()

    def _finish(self, execution: Execution) -> None:
        self._executions[self._latest[execution.instance]] = execution  # its end may have moved since its start
        quiet = self._instances.quiet and not self._batcher.queue
        for request in execution.requests:
            self._done[request.number] = Answer(request=request, at=self._now, quiet=quiet)
        if not self._rules.preserve_ordering:
            for request in execution.requests:
                self._answer(self._done.pop(request.number))
        else:
            while self._order and self._order[0].number in self._done:
                done = self._done.pop(self._order.popleft().number)
                self._answer(replace(done, at=self._now))
        if self._gap:
            heapq.heappush(self._recovering, (self._now + self._gap(execution.rows), execution.instance, execution))
        else:
            self._release(execution)

    def _release(self, execution: Execution) -> None:
        """Notify the batcher of the end, and let the instance look for a payload.

        The instance's thread gives the notice and goes on, so it takes a waiting payload as it is, and requests that
        the batcher adds go into the next one; unless the batcher's thread wakes up first (`race`).
        """
        if self._rules.dynamic and (not self._rules.prefetches or (self._race and self._race())):
            # Without prefetching, the notice comes before the instance counts as idle, so the batcher misses it.
            self._wake()
        self._instances.release(execution, self._now)
        self._start()
        if self._rules.dynamic and self._rules.prefetches:
            self._wake()
            self._start()

    def _answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._arrive(self._load.after(answer))
