"""The batches of one instance of a Python model, formed by a policy from requests that are taken over at once.

Carried by folders beside their model.py, so it imports nothing of this project. Triton does not tell when a request
arrived, and what it hands over it hands over once. So `execute` takes requests the moment that Triton has them, notes
the time and returns None; one thread runs the batches that the policy chooses, and another one sends the answers of a
batch, one by one, while the next one runs. A model with one answer per request may do that (Triton 24.10).

    self._loop = PolicyLoop(settings, policy, self.answers, args, pb_utils, metrics)  # in initialize
    return self._loop.take(requests)  # in execute
"""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

FULL_BATCHES = 2
"""Rows that wait here beyond so many full batches make Triton's own queue wait, whose limits then hold."""
MOST_ELEMENTS = 4 << 20
"""Tensor elements that may wait under deadlines, 32 MB at most: they are in shared memory; a container has 64 MB.

Those of refused requests count until the refusal is sent: answers go first, and of a quick model there is always one.
"""
REQUEST_ELEMENTS = 64
"""What a request takes of that memory beside its tensors: 0.5 KB (measured: 4,000 of 4 elements take 2 MB)."""
SEND_S = 0.2e-3
"""What sending one answer takes, until it has been measured."""
SEND_MEMORY = 0.1
BATCHES_AHEAD = 2
"""Batches that may run before the answers of the first are sent: of a quick model sending takes longer than running."""
END_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A request that waits, with the names of `batch_policy.Waiting`; `deadline` is when its answer is due."""

    request: Any
    sender: Any
    rows: int
    kind: Any
    elements: int
    arrived: float
    deadline: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Requests that ran together; `responses` has None for those that were answered already.

    `cap` is the policy's when they were chosen, `waiting` the requests that it left.
    """

    entries: Sequence[Entry]
    responses: Sequence[Any]
    seconds: float
    cap: float
    waiting: int


class PolicyLoop:
    """Runs what `policy` chooses with `run`, which gives one response for each request, in order.

    `settings` is a `policy_settings.PolicySettings`, `policy` a `batch_policy.Policy`, `triton` Triton's own module,
    `args` what it gives to `initialize`, `metrics` a `policy_metrics.PolicyMetrics` where the server has metrics.
    """

    def __init__(
        self,
        settings: Any,
        policy: Any,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        args: Mapping[str, str],
        triton: Any,
        metrics: Any = None,
    ) -> None:
        config = json.loads(args["model_config"])
        self._name = args["model_instance_name"]
        self._settings, self._policy, self._run_batch, self._triton = settings, policy, run, triton
        # Shapes of inputs that are not ragged decide who can run together; those that cannot differ need no look.
        self._shaped = frozenset(
            tensor["name"]
            for tensor in config["input"]
            if not tensor.get("allow_ragged_batch") and any(int(dim) < 0 for dim in tensor["dims"])
        )
        self._changed = threading.Condition()
        self._waiting: list[Entry] = []
        self._rows = self._elements = self._refused_elements = 0
        self._send_s = SEND_S
        self._ended = False
        self._ahead = threading.Semaphore(BATCHES_AHEAD)
        # A request stands for its refusal.
        self._answers: SimpleQueue[Batch | Entry | None] = SimpleQueue()
        self._metrics = metrics
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._run_all, self._send_all)]
        for thread in self._threads:
            thread.start()

    def take(self, requests: Sequence[Any]) -> Any:
        """Take requests over, and let Triton wait where there are too many already; None, which `execute` returns."""
        now = time.monotonic()
        entries = [self._entry(request, now) for request in requests]
        with self._changed:
            self._waiting += entries
            self._rows += sum(entry.rows for entry in entries)
            self._elements += sum(entry.elements for entry in entries)
            self._changed.notify_all()
            while not (self._has_room() or self._ended):
                self._changed.wait()
        return None

    def end(self) -> None:
        """What `finalize` calls: run what still waits, send all answers, end the threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(END_S)

    def _entry(self, request: Any, now: float) -> Entry:
        shapes = {tensor.name(): tuple(tensor.shape()) for tensor in request.inputs()}
        rows = next(iter(shapes.values()))[0]
        own = request.timeout() / 1e6
        slo_s = self._settings.slo_s if self._settings.mode == "deadline" else math.inf
        return Entry(
            request=request,
            sender=request.get_response_sender(),
            rows=rows,
            kind=tuple((name, shape[1:]) for name, shape in sorted(shapes.items()) if name in self._shaped),
            elements=REQUEST_ELEMENTS + sum(map(math.prod, shapes.values())),
            arrived=now,
            deadline=now + (own if own > 0 else slo_s),
        )

    def _has_room(self) -> bool:
        few = self._rows < FULL_BATCHES * self._settings.max_rows
        # Under deadlines a request that Triton keeps is one whose arrival nobody knows.
        return few or (self._settings.mode == "deadline" and self._elements + self._refused_elements < MOST_ELEMENTS)

    def _run_all(self) -> None:
        while True:
            self._ahead.acquire()
            batch, taken = None, list[Entry]()
            try:
                if (chosen := self._choose()) is None:
                    break
                taken, dropped = chosen
                for entry in dropped:
                    self._answers.put(entry)
                batch = self._run(taken) if taken else None
            except Exception as error:  # of the policy: without this its requests would wait for ever
                self._fail(taken, f"batch_policy {self._settings.mode}: {type(error).__name__}: {error}")
            if batch:
                self._answers.put(batch)
            else:
                self._ahead.release()
        self._answers.put(None)

    def _fail(self, taken: list[Entry], text: str) -> None:
        with self._changed:
            waiting, self._waiting, self._rows, self._elements = self._waiting, [], 0, 0
            self._changed.notify_all()
        for entry in (*taken, *waiting):
            self._send(entry, self._error(text, "INTERNAL"))

    def _choose(self) -> tuple[list[Entry], list[Entry]] | None:
        """Requests to run and requests to refuse, if any; waits for some, None at the end."""
        with self._changed:
            while not (self._waiting or self._ended):
                self._changed.wait()
            if not self._waiting:
                return None
            now = time.monotonic()
            choice = self._policy.choose(self._waiting, now)
            if not (choice.take or choice.drop):
                self._changed.wait(max(0.0, choice.until - now))
                return [], []
            taken, dropped = ([self._waiting[index] for index in part] for part in (choice.take, choice.drop))
            gone = {*choice.take, *choice.drop}
            self._waiting = [entry for index, entry in enumerate(self._waiting) if index not in gone]
            self._rows = sum(entry.rows for entry in self._waiting)
            self._elements = sum(entry.elements for entry in self._waiting)
            self._refused_elements += sum(entry.elements for entry in dropped)
            self._changed.notify_all()
            return taken, dropped

    def _run(self, entries: Sequence[Entry]) -> Batch:
        cap, waiting, started = self._policy.cap, len(self._waiting), time.monotonic()
        try:
            responses = self._run_batch([entry.request for entry in entries])
            if len(responses) != len(entries):
                raise ValueError(f"{len(responses)} responses for {len(entries)} requests")
        except Exception as error:
            responses = [self._error(f"{type(error).__name__}: {error}", "INTERNAL") for _ in entries]
        seconds = time.monotonic() - started
        # An answer is in time when it was sent in time, not when its batch has ended.
        sending = len(entries) * self._send_s if self._settings.mode == "deadline" else 0.0
        self._policy.observe(sum(entry.rows for entry in entries), seconds + sending)
        return Batch(entries=entries, responses=responses, seconds=seconds, cap=cap, waiting=waiting)

    def _send_all(self) -> None:
        """Answers first: a refusal takes as long to send, and nobody's deadline depends on it."""
        refused: deque[Entry] = deque()
        open_ = True
        while open_ or refused:
            try:
                found = self._answers.get(block=open_ and not refused)
            except Empty:
                self._or_log(self._refuse, refused.popleft())
                continue
            if isinstance(found, Entry):
                refused.append(found)
            elif found is None:
                open_ = False
            else:
                self._or_log(self._send_batch, found)
                self._ahead.release()

    def _or_log(self, act: Callable[[Any], None], what: Batch | Entry) -> None:
        try:
            act(what)
        except Exception as error:  # of a metric: without this whoever is next would wait for ever
            self._triton.Logger.log_error(f"batch_policy {self._name}: {type(error).__name__}: {error}")

    def _send_batch(self, batch: Batch) -> None:
        began, late = time.monotonic(), 0
        for entry, response in zip(batch.entries, batch.responses, strict=True):
            if response is not None:
                self._send(entry, response)
            late += time.monotonic() > entry.deadline
        self._send_s += SEND_MEMORY * ((time.monotonic() - began) / len(batch.entries) - self._send_s)
        rows = sum(entry.rows for entry in batch.entries)
        if self._metrics:
            self._metrics.ran(rows, batch.seconds, late, self._policy.cap)
        if self._settings.log:
            self._triton.Logger.log_info(
                f"batch_policy {self._name}: {rows} rows in {batch.seconds * 1e3:.3f} ms, cap {batch.cap:.2f}, "
                f"{batch.waiting} requests waiting, {late} late"
            )

    def _send(self, entry: Entry, response: Any) -> None:
        try:
            entry.sender.send(response, self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception as error:  # the others still wait for theirs
            self._triton.Logger.log_error(f"batch_policy: an answer was not sent: {error}")

    def _refuse(self, entry: Entry) -> None:
        with self._changed:
            self._refused_elements -= entry.elements
            self._changed.notify_all()
        waited, budget = time.monotonic() - entry.arrived, entry.deadline - entry.arrived
        text = (
            f"batch_policy deadline: refused after {waited * 1e3:.1f} of {budget * 1e3:.1f} ms: the answer would be "
            "late or delay others too long. Send fewer requests, or allow more time (the request's timeout, or slo_ms)."
        )
        self._send(entry, self._error(text, "UNAVAILABLE"))
        if self._metrics:
            self._metrics.refused()

    def _error(self, text: str, code: str) -> Any:
        error = self._triton.TritonError
        return self._triton.InferenceResponse(error=error(text, getattr(error, code)))
