"""Sends the answers of one instance's batches, one by one, while the next batch runs; and the refusals.

Carried by folders beside their model.py, so it imports nothing of this project.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

SEND_S = 0.2e-3
"""What sending one answer takes, until it has been measured."""
SEND_MEMORY = 0.1
BATCHES_AHEAD = 2
"""Batches that may run before the answers of the first are sent: of a quick model sending takes longer than running."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A request that waits, with the names of `batch_policy.Waiting`; `deadline` is when its answer is due.

    `cancelled`: Triton said that its client has cancelled it.
    """

    request: Any
    sender: Any
    rows: int
    kind: Any
    elements: int
    arrived: float
    deadline: float
    cancelled: bool = False


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


class PolicySender:
    """One thread that sends what it is given; `refused` is called with each request before its refusal is sent.

    `seconds` is what sending one answer takes. The other arguments are those of `policy_loop.PolicyLoop`.
    """

    def __init__(
        self, settings: Any, policy: Any, name: str, triton: Any, metrics: Any, refused: Callable[[Entry], None]
    ) -> None:
        self.seconds = SEND_S
        self._settings, self._policy, self._name, self._triton = settings, policy, name, triton
        self._metrics, self._refused = metrics, refused
        self._ahead = threading.Semaphore(BATCHES_AHEAD)
        # A request stands for its refusal.
        self._answers: SimpleQueue[Batch | Entry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until one more batch may run; `answer` says what became of it."""
        self._ahead.acquire()

    def answer(self, batch: Batch | None) -> None:
        """Send the answers of a batch, None when none was run."""
        if batch:
            self._answers.put(batch)
        else:
            self._ahead.release()

    def refuse(self, entries: Iterable[Entry]) -> None:
        """Tell the clients of these requests that they are not run."""
        for entry in entries:
            self._answers.put(entry)

    def fail(self, entries: Iterable[Entry], text: str) -> None:
        """Answer these requests with an error, now."""
        for entry in entries:
            self._send(entry, self.error(text, "INTERNAL"))

    def error(self, text: str, code: str) -> Any:
        """A response that is an error."""
        error = self._triton.TritonError
        return self._triton.InferenceResponse(error=error(text, getattr(error, code)))

    def end(self) -> None:
        """Nothing more comes."""
        self._answers.put(None)

    def join(self, seconds: float) -> None:
        """Wait until all is sent, but no longer than that."""
        self._thread.join(seconds)

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
        self.seconds += SEND_MEMORY * ((time.monotonic() - began) / len(batch.entries) - self.seconds)
        rows = sum(entry.rows for entry in batch.entries)
        if self._metrics:
            self._metrics.ran(rows, batch.seconds, late, self._policy.cap)
        if self._settings.log:
            self._triton.Logger.log_info(
                f"batch_policy {self._name}: {rows} rows in {batch.seconds * 1e3:.3f} ms, cap {batch.cap:.2f}, "
                f"{batch.waiting} requests waiting, {late} late"
            )

    def _send(self, entry: Entry, response: Any) -> None:
        final = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            entry.sender.send(response, final)
        except Exception as error:  # the others still wait for theirs
            text = f"batch_policy {self._name}: an answer was not sent: {type(error).__name__}: {error}"
            self._triton.Logger.log_error(text)
            # Triton refuses this one where it had taken the answer itself: there is one for each request.
            with contextlib.suppress(Exception):
                entry.sender.send(self.error(text, "INTERNAL"), final)

    def _refuse(self, entry: Entry) -> None:
        self._refused(entry)
        waited, budget = time.monotonic() - entry.arrived, entry.deadline - entry.arrived
        if entry.cancelled:
            text = f"batch_policy {self._settings.mode}: cancelled after {waited * 1e3:.1f} ms, before it ran"
            self._send(entry, self.error(text, "CANCELLED"))
        else:
            text = (
                f"batch_policy deadline: refused after {waited * 1e3:.1f} of {budget * 1e3:.1f} ms: the answer would "
                "be late or delay others too long. Send fewer requests, or allow more time (the request's timeout, or "
                "slo_ms)."
            )
            self._send(entry, self.error(text, "UNAVAILABLE"))
        if self._metrics:
            self._metrics.refused(cancelled=entry.cancelled)
