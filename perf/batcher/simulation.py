"""The discrete-event simulation: arrivals, the batcher's thread and the instances on one clock.

At one instant, executions that end come first, then arrivals, then the batcher, then instances that wake up; the
batcher's own steps take no time.
"""

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from perf.batcher.instances import Burden, Execution, Instances, ServiceTime, Slowdown, Waking
from perf.batcher.load import Answer, Load
from perf.batcher.payload import Closing, Payload, Rule
from perf.batcher.request import Request, Time
from perf.batcher.rules import Rules
from perf.batcher.scheduler import Batcher
from perf.batcher.waiting import Waiting

Gap = Callable[[int], Time]
"""Time that an execution of so many rows keeps its instance after its end."""

LATE = "Request timeout expired"
TOO_MANY = "Exceeds maximum queue size"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that happened: executions in order of their start, answers in order of their time.

    `stuck` counts requests that would wait for ever (held for more requests than came).
    """

    executions: tuple[Execution, ...]
    answers: tuple[Answer, ...]
    stuck: int = 0

    @property
    def rows_per_execution(self) -> float:
        """Mean rows that ran together; 0 when nothing ran."""
        return sum(one.rows for one in self.executions) / len(self.executions) if self.executions else 0.0

    @property
    def sizes(self) -> dict[int, int]:
        """Executions by rows, as the server's batch statistics count them."""
        return dict(sorted(Counter(one.rows for one in self.executions).items()))

    @property
    def served(self) -> list[Answer]:
        """Answers that are no error."""
        return [answer for answer in self.answers if not answer.error]

    @property
    def refused(self) -> Counter[str]:
        """Errors and how many requests got them."""
        return Counter(answer.error for answer in self.answers if answer.error)

    @property
    def makespan(self) -> Time:
        """From the first arrival to the last answer."""
        if not self.answers:
            return 0
        return max(one.at for one in self.answers) - min(one.request.at for one in self.answers)

    @property
    def mean_latency(self) -> Fraction:
        """Mean time from arrival to answer over the served requests; 0 when there are none."""
        served = self.served
        return Fraction(sum(answer.latency for answer in served)) / len(served) if served else Fraction(0)

    def first(self, count: int) -> "Outcome":
        """Of the requests numbered 1 to `count` only, with the executions that they were in."""
        return replace(
            self,
            executions=tuple(
                one for one in self.executions if any(request.number <= count for request in one.requests)
            ),
            answers=tuple(one for one in self.answers if one.request.number <= count),
        )

    def latency_quantile(self, q: float) -> Time:
        """Latency that the share `q` of the served requests does not exceed; 0 when there are none."""
        found = sorted(answer.latency for answer in self.served)
        return found[min(len(found) - 1, int(q * len(found)))] if found else 0


def simulate(
    rules: Rules,
    service: ServiceTime,
    load: Load,
    *,
    slowdown: Slowdown | None = None,
    burden: Burden | None = None,
    gap: Gap | None = None,
    waking: Waking | None = None,
    dispatch: Time = 0,
    lateness: Time = 0,
) -> Outcome:
    """Run `load` to its end under `rules`, with executions that take `service(rows)` when they run alone.

    `slowdown` says how much longer they take while others run; without it instances do not disturb each other. `burden`
    says by how much each request that arrives makes those under way longer. `gap` says how long an instance is not yet
    idle after an execution's end: who comes in it may be in its next batch. `waking` says how much longer an execution
    takes after a pause, `dispatch` how long an idle instance needs to take a batch, which may still grow meanwhile, and
    `lateness` how long after it a delay's end is seen.
    """
    instances = Instances(rules, service, slowdown=slowdown, burden=burden, waking=waking, dispatch=dispatch)
    return _Simulation(rules, load, instances, gap, lateness).run()


class _Simulation:
    def __init__(self, rules: Rules, load: Load, instances: Instances, gap: Gap | None, lateness: Time) -> None:
        self._rules, self._load, self._instances, self._gap = rules, load, instances, gap
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

    def run(self) -> Outcome:
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
            if notified or (self._rules.dynamic and self._batcher.queue and self._batcher.deadline <= now):
                self._wake()
            self._start()
        return Outcome(executions=tuple(self._executions), answers=tuple(self._answers), stuck=len(self._batcher.queue))

    def _next_time(self) -> Time | None:
        found = self._arrivals[0][0] if self._arrivals else None
        end = self._instances.next_end
        if end is not None and (found is None or end < found):
            found = end
        if self._recovering and (found is None or self._recovering[0][0] < found):
            found = self._recovering[0][0]
        awake = self._instances.next_awake
        if awake is not None and (found is None or awake < found):
            found = awake
        if self._batcher.queue and (found is not None or not self._is_stuck()):
            deadline = self._batcher.deadline
            if found is None or deadline < found:
                found = deadline
        return found

    def _is_stuck(self) -> bool:
        """With nothing more to come: does the batcher wait for what will never be?"""
        batcher = self._batcher
        if batcher.holding:
            return len(batcher.queue) < batcher.holding
        return batcher.waits_for_slot and not self._instances.slot_free() and not batcher.queue.has_deadlines

    def _arrive(self, requests: Iterable[Request]) -> None:
        for request in requests:
            heapq.heappush(self._arrivals, (request.at, next(self._serial), request))

    def _enqueue(self, request: Request) -> bool:
        """Whether the batcher must look."""
        self._instances.burden()
        if self._rules.dynamic:
            wake = self._batcher.enqueue(request, self._now)
            if wake is None:
                self._answer(Answer(request=request, at=self._now, error=TOO_MANY))
            return bool(wake)
        payload = Payload(queued=True, closing=Closing(rule=Rule.NOT_DYNAMIC))
        payload.add([Waiting(request, self._now, None, ())])
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
        """Idle instances take payloads; each time the batcher is told, and may form another."""
        while (execution := self._instances.start(self._now)) is not None:
            self._latest[execution.instance] = len(self._executions)
            self._executions.append(execution)
            if self._rules.preserve_ordering:
                self._order.extend(execution.requests)
            if self._rules.dynamic:
                self._wake()

    def _finish(self, execution: Execution) -> None:
        self._executions[self._latest[execution.instance]] = execution  # it may have taken longer than foreseen
        quiet = self._instances.quiet and not self._batcher.queue
        for request in execution.requests:
            self._done[request.number] = Answer(
                request=request, at=self._now, together=len(execution.requests), quiet=quiet
            )
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
        """The instance's thread tells the batcher that it has ended, and looks for a payload itself.

        It is there first: the batcher's thread has yet to wake up. So a payload that waits is taken as it is, and what
        the batcher adds goes into the next.
        """
        if self._rules.dynamic and not self._rules.prefetches:
            # Told before the instance counts as idle: the batcher sees none and misses it.
            self._wake()
        self._instances.release(execution, self._now)
        self._start()
        if self._rules.dynamic and self._rules.prefetches:
            self._wake()
            self._start()

    def _answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._arrive(self._load.after(answer))
