"""Sends the answers of one instance's batches while the next batch runs, and the refusals.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.
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
"""The time to send one answer, until it is measured."""
NEW_WEIGHT = 0.1
BATCHES_AHEAD = 2
"""Batches that may run before the answers of the first are sent; a fast model runs faster than its answers are sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A waiting request, with the fields of `batch_policy.Waiting`; `cancelled` if its client cancelled it."""

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
    """Requests that ran together, with one response each.

    `cap` is the policy's when it chose them, `waiting` the number of requests that kept waiting.
    """

    entries: Sequence[Entry]
    responses: Sequence[Any]
    seconds: float
    cap: float
    waiting: int


class PolicySender:
    """A thread that sends answers and refusals; calls `refused` with a request before it sends its refusal.

    `seconds` is the time to send one answer. The other arguments are those of `policy_loop.PolicyLoop`.
    """

    def __init__(
        self, settings: Any, policy: Any, name: str, triton: Any, metrics: Any, refused: Callable[[Entry], None]
    ) -> None:
        self.seconds = SEND_S
        self._settings, self._policy, self._name, self._triton = settings, policy, name, triton
        self._metrics, self._refused = metrics, refused
        self._ahead = threading.Semaphore(BATCHES_AHEAD)
        # An `Entry` is a request to refuse, None ends the thread.
        self._answers: SimpleQueue[Batch | Entry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until one more batch may run; `answer` must follow."""
        self._ahead.acquire()

    def answer(self, batch: Batch | None) -> None:
        """Send the answers of a batch; None if no batch ran."""
        if batch:
            self._answers.put(batch)
        else:
            self._ahead.release()

    def refuse(self, entries: Iterable[Entry]) -> None:
        """Refuse these requests."""
        for entry in entries:
            self._answers.put(entry)

    def fail(self, entries: Iterable[Entry], text: str) -> None:
        """Answer these requests with an error, now."""
        for entry in entries:
            self._send(entry, self.error(text, "INTERNAL"))

    def error(self, text: str, code: str) -> Any:
        """An error response."""
        error = self._triton.TritonError
        return self._triton.InferenceResponse(error=error(text, getattr(error, code)))

    def end(self) -> None:
        """End the thread once everything is sent."""
        self._answers.put(None)

    def join(self, seconds: float) -> None:
        """Wait until everything is sent, at most `seconds`."""
        self._thread.join(seconds)

    def _send_all(self) -> None:
        """Send answers before refusals, which take as long to send and have no deadline."""
        refused: deque[Entry] = deque()
        open_ = True
        while open_ or refused:
            try:
                item = self._answers.get(block=open_ and not refused)
            except Empty:
                self._or_log(self._refuse, refused.popleft())
                continue
            if isinstance(item, Entry):
                refused.append(item)
            elif item is None:
                open_ = False
            else:
                self._or_log(self._send_batch, item)
                self._ahead.release()

    def _or_log(self, send: Callable[[Any], None], item: Batch | Entry) -> None:
        try:
            send(item)
        except Exception as error:  # an error of a metric must not end this thread
            self._triton.Logger.log_error(f"batch_policy {self._name}: {type(error).__name__}: {error}")

    def _send_batch(self, batch: Batch) -> None:
        started, late = time.monotonic(), 0
        for entry, response in zip(batch.entries, batch.responses, strict=True):
            self._send(entry, response)
            late += time.monotonic() > entry.deadline
        self.seconds += NEW_WEIGHT * ((time.monotonic() - started) / len(batch.entries) - self.seconds)
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
        except Exception as error:  # the other requests still need their answers
            text = f"batch_policy {self._name}: an answer was not sent: {type(error).__name__}: {error}"
            self._triton.Logger.log_error(text)
            # Triton refuses the error if it did take the answer, because a request has only one.
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
                "be late, or would delay others too long. Send fewer requests, or allow more time (the request's "
                "timeout, or slo_ms)."
            )
            self._send(entry, self.error(text, "UNAVAILABLE"))
        if self._metrics:
            self._metrics.refused(cancelled=entry.cancelled)
