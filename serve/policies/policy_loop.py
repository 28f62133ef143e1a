"""Forms the batches of one instance of a Python model by a policy.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.

Triton does not tell when a request arrived. So `execute` takes requests as soon as Triton has them, notes the time and
returns None. One thread runs the batches that the policy chooses; another one sends the answers of a batch while the
next batch runs (policy_sender.py). Triton 24.10 allows this for models with one answer per request.

    self._loop = PolicyLoop(settings, policy, self.answers, args, pb_utils, metrics)  # in initialize
    return self._loop.take(requests)  # in execute
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policy_sender import Batch, Entry, PolicySender

FULL_BATCHES = 2
"""If more than this many full batches wait here, further requests wait in Triton's queue, whose limits then hold."""
MOST_ELEMENTS = 4 << 20
"""Tensor elements that may wait under deadlines: at most 32 MB of shared memory, of which a container has 64 MB.

The elements of refused requests count until the refusal is sent, which happens after the answers that are ready.
"""
REQUEST_ELEMENTS = 64
"""The shared memory of a request beside its tensors: 0.5 KB (measured: 4,000 requests of 4 elements take 2 MB)."""
END_S = 5.0
ASK_S = 40e-6
"""The time to ask Triton whether a request was cancelled: a round trip to the server (measured: 30 to 50 us)."""
ASK_SHARE = 0.01
"""The share of a batch's time that these questions may take; batches of less than 4 ms are not asked about."""


class PolicyLoop:
    """Runs the batches that `policy` chooses with `run`, which returns one response for each request, in order.

    `settings` is a `policy_settings.PolicySettings`, `policy` a `batch_policy.Policy`, `triton` Triton's own module,
    `args` the argument of `initialize`, `metrics` a `policy_metrics.PolicyMetrics`, None on a server without metrics.
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
        self._settings, self._policy, self._run_batch = settings, policy, run
        # Requests run together if these inputs, which are not ragged and have open dims, have equal shapes.
        self._shaped = frozenset(
            tensor["name"]
            for tensor in config["input"]
            if not tensor.get("allow_ragged_batch") and any(int(dim) < 0 for dim in tensor["dims"])
        )
        self._changed = threading.Condition()
        self._waiting: list[Entry] = []
        self._rows = self._elements = self._refused_elements = 0
        self._batch_s = math.inf
        self._checked = set[int]()
        self._ended = False
        self._sender = PolicySender(settings, policy, args["model_instance_name"], triton, metrics, self._refused)
        self._thread = threading.Thread(target=self._run_all, daemon=True)
        self._thread.start()

    def take(self, requests: Sequence[Any]) -> Any:
        """Take requests; returns None for `execute`, once so few wait here that Triton may hand over more."""
        now = time.monotonic()
        entries = [self._entry(request, now) for request in requests]
        with self._changed:
            self._waiting += entries
            self._rows += sum(entry.rows for entry in entries)
            self._elements += _elements(entries)
            self._changed.notify_all()
            while not (self._has_room() or self._ended):
                self._changed.wait()
        return None

    def end(self) -> None:
        """Run the waiting requests, send all answers and end the threads; for `finalize`."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(END_S)
        self._sender.join(END_S)

    def _entry(self, request: Any, now: float) -> Entry:
        shapes = {tensor.name(): tuple(tensor.shape()) for tensor in request.inputs()}
        rows = next(iter(shapes.values()))[0]
        timeout = request.timeout() / 1e6
        slo_s = self._settings.slo_s if self._settings.mode == "deadline" else math.inf
        return Entry(
            request=request,
            sender=request.get_response_sender(),
            rows=rows,
            kind=tuple((name, shape[1:]) for name, shape in sorted(shapes.items()) if name in self._shaped),
            elements=REQUEST_ELEMENTS + sum(map(math.prod, shapes.values())),
            arrived=now,
            deadline=now + (timeout if timeout > 0 else slo_s),
        )

    def _has_room(self) -> bool:
        has_few_rows = self._rows < FULL_BATCHES * self._settings.max_rows
        # Under deadlines more requests are taken, because nobody knows the arrival of those in Triton's queue.
        return has_few_rows or (
            self._settings.mode == "deadline" and self._elements + self._refused_elements < MOST_ELEMENTS
        )

    def _count(self) -> None:
        self._rows = sum(entry.rows for entry in self._waiting)
        self._elements = _elements(self._waiting)

    def _refused(self, entry: Entry) -> None:
        """Release the memory of a request whose refusal is sent next."""
        with self._changed:
            self._refused_elements -= entry.elements
            self._changed.notify_all()

    def _run_all(self) -> None:
        while True:
            self._sender.wait()
            batch, taken = None, list[Entry]()
            try:
                if (choice := self._choose()) is None:
                    break
                taken, dropped = choice
                self._sender.refuse(dropped)
                taken = self._uncancelled(taken)
                batch = self._run(taken) if taken else None
            except Exception as error:  # an error of the policy; its requests must not wait forever
                self._fail(taken, f"batch_policy {self._settings.mode}: {type(error).__name__}: {error}")
            self._sender.answer(batch)
        self._sender.end()

    def _fail(self, taken: list[Entry], text: str) -> None:
        with self._changed:
            waiting, self._waiting, self._rows, self._elements = self._waiting, [], 0, 0
            self._changed.notify_all()
        self._sender.fail((*taken, *waiting), text)

    def _choose(self) -> tuple[list[Entry], list[Entry]] | None:
        """Wait for requests; returns those to run and those to refuse, None at the end."""
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
            chosen = {*choice.take, *choice.drop}
            self._waiting = [entry for index, entry in enumerate(self._waiting) if index not in chosen]
            self._count()
            self._refused_elements += _elements(dropped)
            self._changed.notify_all()
            return taken, dropped

    def _uncancelled(self, entries: list[Entry]) -> list[Entry]:
        """The batch unchanged, or empty if a request was cancelled: the others wait again for a full batch.

        Asks about the first requests of the batch. A cancelled one saves its share of the batch's time, so more may be
        asked about.
        """
        gone, time_left = set[int](), ASK_SHARE * self._batch_s
        for entry in entries:
            if time_left < ASK_S:
                break
            if id(entry) in self._checked:
                continue
            if entry.request.is_cancelled():
                gone.add(id(entry))
                time_left += self._batch_s / len(entries)
            else:
                self._checked.add(id(entry))
                time_left -= ASK_S
        if not gone:
            self._checked.clear()
            return entries
        cancelled = [replace(entry, cancelled=True) for entry in entries if id(entry) in gone]
        with self._changed:
            back = [entry for entry in entries if id(entry) not in gone]
            self._waiting = sorted([*back, *self._waiting], key=lambda entry: entry.arrived)
            self._count()
            self._refused_elements += _elements(cancelled)
        self._sender.refuse(cancelled)
        return []

    def _run(self, entries: Sequence[Entry]) -> Batch:
        cap, waiting, started = self._policy.cap, len(self._waiting), time.monotonic()
        try:
            responses = self._run_batch([entry.request for entry in entries])
            if len(responses) != len(entries):
                raise ValueError(f"{len(responses)} responses for {len(entries)} requests")
        except BaseException as error:  # SystemExit too, which would end this thread
            responses = [self._sender.error(f"{type(error).__name__}: {error}", "INTERNAL") for _ in entries]
        seconds = self._batch_s = time.monotonic() - started
        # An answer must be sent before its deadline, so the time to send counts as well.
        sending = len(entries) * self._sender.seconds if self._settings.mode == "deadline" else 0.0
        self._policy.observe(sum(entry.rows for entry in entries), seconds + sending)
        return Batch(entries=entries, responses=responses, seconds=seconds, cap=cap, waiting=waiting)


def _elements(entries: Iterable[Entry]) -> int:
    return sum(entry.elements for entry in entries)
