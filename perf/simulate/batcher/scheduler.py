"""The batcher's thread: when it looks at the queue, what it takes, and which notices it misses while it waits.

Follows Triton's `DynamicBatchScheduler` (core 2.51, the same up to 2.70). Each model has one such thread. It forms
payloads ahead of the instances, at most two for each; with priorities or a queue policy only for an idle instance.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from perf.simulate.batcher.payload import Closing, ClosingRule, Payload
from perf.simulate.batcher.request import MS, Request, Time
from perf.simulate.batcher.request_queue import QueuedRequest, RequestQueue
from perf.simulate.batcher.rules import Rules

POLL = 500 * MS
HOLD_POLL = 10 * MS


@dataclass(frozen=True, slots=True)
class _Choice:
    """How many requests to take now; or, if none, how long to wait."""

    count: int
    closing: Closing | None
    wait: Time = 0


@dataclass(slots=True)
class _Scan:
    """Requests that fit into one batch, how many of them make the best preferred size (0: none), and what ended it."""

    seen: list[QueuedRequest] = field(default_factory=list)
    rows: int = 0
    best: int = 0
    closing: Closing | None = None

    def stop(self, rule: ClosingRule, payload: Payload, outside: QueuedRequest) -> None:
        """End the scan at a request that does not fit."""
        last = (self.seen or payload.requests)[-1].request
        self.closing = Closing(rule=rule, last=last, next=outside.request)


class Batcher:
    """The thread that turns waiting requests into payloads.

    `send` gives a payload to the instances, `slot_free` tells whether they can take another. The thread
    wakes `lateness` after the end of a queue delay, or of a request's timeout during it. Without a notice it wakes
    next at `wakes_at`.
    """

    def __init__(
        self, rules: Rules, *, send: Callable[[Payload], None], slot_free: Callable[[], bool], lateness: Time = 0
    ) -> None:
        self.rules, self._send, self._slot_free, self._lateness = rules, send, slot_free, lateness
        self.queue = RequestQueue(rules)
        self.wakes_at: Time = 0
        self.waits_for_slot = False
        self.holding = rules.hold
        self._payload, self._full = Payload(), False
        self._limit = max(1, rules.max_batch_size)
        self._largest_preferred = max(rules.preferred, default=0)
        self._queued_rows = self._next_preferred = 0
        self._thread = self._run()
        next(self._thread)

    def enqueue(self, request: Request, now: Time) -> bool | None:
        """Queue a request; returns None if the queue is full, else whether to wake the thread."""
        if not self.queue and self.wakes_at <= now:  # it kept polling while nothing waited
            poll = HOLD_POLL if self.holding else POLL
            self.wakes_at += ((now - self.wakes_at) // poll + 1) * poll
        self._queued_rows += request.rows
        if not self.queue.add(request, now):
            return None
        wake = self._slot_free()
        if not self.rules.equal_shape:
            # In this case Triton wakes the thread only when enough rows for the next preferred size wait.
            wake &= self._full or self._payload.taken or self._queued_rows >= self._next_preferred
        return wake

    def wake(self, now: Time) -> None:
        """Run the thread until it waits again, after a notice or at `wakes_at`."""
        self._thread.send(now)

    def _run(self) -> Generator[None, Time, None]:
        now = yield
        while True:
            if self._full or self._payload.taken:
                self._payload, self._full, self._next_preferred = Payload(), False, 0
            if self.holding:
                if len(self.queue) >= self.holding:
                    self.holding = 0
                now = yield from self._sleep(now + HOLD_POLL)
            elif not self.queue:
                now = yield from self._sleep(now + POLL)
            else:
                now = yield from self._wait_for_slot(now)
                if self._payload.taken:
                    continue
                choice = self._choose(now)
                if choice.wait:
                    now = yield from self._sleep(now + choice.wait + self._lateness)
                else:
                    self._extract(choice)
                    if not choice.count and self._payload.requests and not self._full:
                        # Triton spins here until an instance takes the payload, which has no room for the next request.
                        now = yield from self._sleep(now + POLL)

    def _sleep(self, until: Time) -> Generator[None, Time, Time]:
        self.wakes_at = until
        return (yield)

    def _wait_for_slot(self, now: Time) -> Generator[None, Time, Time]:
        self.wakes_at = now + POLL
        while not self._slot_free():
            self.waits_for_slot = True
            now = yield
            # Without a later notice, a free instance is seen only at the next poll.
            if now >= self.wakes_at and not self._slot_free():
                self.queue.reject_late(now)
                self.wakes_at = now + POLL
        self.waits_for_slot = False
        return now

    def _extract(self, choice: _Choice) -> None:
        payload = self._payload
        taken = self.queue.take(choice.count)
        payload.add(taken)
        self._queued_rows -= sum(queued.request.rows for queued in taken)
        if choice.closing is not None and payload.requests:
            payload.closing = choice.closing
        if payload.requests and not payload.queued:
            payload.queued = True
            self._send(payload)

    def _choose(self, now: Time) -> _Choice:
        """Choose as Triton does: the largest batch that fits, the largest preferred size, or to wait."""
        rules, rows = self.rules, self._payload.rows
        scan = self._scan(now)
        oldest = min((queued.since for queued in scan.seen), default=None)
        over = rules.delay != 0 and (oldest is None or now - oldest >= rules.delay)
        if scan.best and not over:
            self._full |= rules.delay == 0
            return _Choice(scan.best, self._at_size(scan))
        if oldest is None:
            return _Choice(0, scan.closing)
        count, total = len(scan.seen), rows + scan.rows
        if scan.closing is not None or total >= self._largest_preferred:
            self._full = True
            scan.best = count
            return _Choice(count, scan.closing or self._at_size(scan))
        if over or not rules.delay:
            return _Choice(count, Closing(rule=ClosingRule.DELAY if over else ClosingRule.NOTHING_WAITED))
        self._next_preferred = self._preferred_above(total)
        if not self._full and rows and rows not in rules.preferred:
            return _Choice(count, Closing(rule=ClosingRule.NOTHING_WAITED))
        wait = rules.delay - (now - oldest)
        deadlines = (queued.deadline - now for queued in scan.seen if queued.deadline is not None)
        return _Choice(0, None, min([wait, *deadlines]))

    def _scan(self, now: Time) -> "_Scan":
        """Scan the queue as far as one batch can reach."""
        payload, scan, rejected = self._payload, _Scan(), len(self.queue.rejected)
        for queued in self.queue.candidates(now):
            request = queued.request
            if not payload.rows and not scan.seen:
                payload.batch_key = queued.batch_key
            else:
                size = payload.rows + scan.rows + request.rows
                if not scan.best and size > self._largest_preferred:
                    scan.best, self._full = len(scan.seen), True
                if size > self._limit:
                    scan.stop(ClosingRule.MAX_BATCH_SIZE, payload, queued)
                    break
                if queued.batch_key != payload.batch_key:
                    payload.sealed = True
                    scan.stop(_differing(payload.batch_key, queued), payload, queued)
                    break
            scan.seen.append(queued)
            scan.rows += request.rows
            if payload.rows + scan.rows in self.rules.preferred:
                scan.best = len(scan.seen)
        # As in Triton, requests that are rejected at a poll stay in this count.
        self._queued_rows -= sum(request.rows for request in self.queue.rejected[rejected:])
        return scan

    def _at_size(self, scan: "_Scan") -> Closing:
        """Return why the batch ends at the best size of the scan."""
        rows = self._payload.rows + sum(queued.request.rows for queued in scan.seen[: scan.best])
        outside = [queued.request for queued in scan.seen[scan.best :]]
        if scan.closing is not None and scan.closing.next is not None:
            outside.append(scan.closing.next)
        full = rows + (outside[0].rows if outside else 1) > self._limit
        return Closing(
            rule=ClosingRule.MAX_BATCH_SIZE if full else ClosingRule.PREFERRED,
            last=scan.seen[scan.best - 1].request,
            next=outside[0] if outside else None,
        )

    def _preferred_above(self, rows: int) -> int:
        above = [size for size in self.rules.preferred if size > rows]
        target = min(above, default=min(self.rules.preferred, default=0))
        return target - self._payload.rows if target else 0


def _differing(batch_key: tuple[object, ...] | None, queued: QueuedRequest) -> ClosingRule:
    assert batch_key is not None
    if batch_key[2] != queued.batch_key[2]:
        return ClosingRule.INPUTS
    return ClosingRule.SHAPE if batch_key[0] != queued.batch_key[0] else ClosingRule.CONTENTS
