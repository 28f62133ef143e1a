"""One model on several servers: each request goes to the next of them, and to another one if that fails.

A replica that does not answer gets no more requests, until a look at it in the background finds the model there again.
Until then only a request for which no other replica is left tries it.
"""

import contextlib
import copy
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from .addresses import Addresses
from .contract import Array, Metadata
from .endpoint import Endpoint
from .errors import (
    AddressError,
    ClientError,
    NotReadyError,
    ServerUnreachableError,
    TimedOutError,
    TlsError,
    serve,
    timed_out,
)
from .exchange import Exchange
from .replica import Replica
from .retries import Retries
from .steps import Pause, Step, Steps, Work, deadline_after, seconds_until
from .terms import Terms
from .user_call import UserCall
from .wire import Parameter

AGAIN_S = 0.3
"""The pause before the next look at a replica that does not answer."""

RENEW_S = 10.0
"""How old the addresses of a name may get while there are requests."""

WAIT_S, PAUSE_S = 0.5, 0.05
"""How long a request goes on if no replica can be reached, and the pause before it begins again."""

MOST_SEQUENCES = 10_000
"""How many sequences that have not ended are remembered with their replicas; the oldest are forgotten."""


class Replicas:
    """What `Exchange` is for one server; `metadata` is set by `open`.

    `endpoints` holds the servers by address. `start` runs steps in the background; the connections set it.
    """

    metadata: Metadata
    start: Callable[[Steps[None]], None]

    def __init__(self, model: str, version: str, addresses: Addresses, transport: object, retries: Retries) -> None:
        """Raises `TransportError`, `AddressError` and `InvalidInputError`."""
        self._model, self._version, self._addresses, self._asked = model, version, addresses, transport
        self.transport = self._exchange(addresses.endpoints[0]).transport
        if self.transport == "custom":
            raise AddressError(f"{addresses.url}: a transport of your own needs one address.", url=addresses.url)
        self._retries, self._lock = retries, threading.Lock()
        # Clients begin at different replicas: a short program makes only a few requests.
        self._turns = itertools.count(random.randrange(1 << 16))
        self._all: tuple[Replica, ...] = ()
        self._sequences: dict[Parameter, str] = {}
        self._closed, self._renewed, self._renews = True, 0.0, False
        self.endpoints: dict[str, Endpoint] = {}

    def open(self, timeout_s: float | None) -> Steps[Metadata]:
        """Look at each replica; the model is that of the first one, with the smallest batch and the instances of all.

        Raises the error of the replicas if none works, and what a user has to change at any of them.
        """
        endpoints = (yield Work(self._addresses.now, _ignore)) if self._addresses.is_name else self._addresses.endpoints
        self._closed, self._renewed = False, time.monotonic()
        self._all = tuple(map(self._replica, endpoints))
        for replica in self._all:
            yield from replica.look(None, timeout_s)
            if replica.error and not isinstance(replica.error, ServerUnreachableError):
                raise replica.error
        working = [replica.metadata for replica in self._all if replica.error is None]
        if not working:
            raise self._together([replica.error for replica in self._all if replica.error])
        self.metadata = replace(
            working[0],
            max_batch_size=min(metadata.max_batch_size for metadata in working),
            instances=working[0].instances * len(self._all),
        )
        for replica in self._all:
            if replica.error:
                self._watch(replica)
            elif error := replica.difference(self.metadata):
                raise error
        return self.metadata

    def infer(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[dict[str, Array]]:
        """The outputs by name for checked `arrays`; raises a `ClientError`."""
        if self._addresses.is_name:
            self._renew_soon()
        call = UserCall(arrays, terms, deadline_after(terms.timeout_s), self._retries.repeats(self.metadata, terms))
        waits_until = time.monotonic() + min(WAIT_S, terms.timeout_s or WAIT_S)
        while True:
            errors: list[ClientError] = []
            outputs = yield from self._round(call, errors)
            if outputs is not None:
                self._retries.answered()
                return outputs
            if not _none_is_there(errors) or seconds_until(waits_until) < PAUSE_S:
                raise self._together(errors) from errors[-1]
            yield Pause(PAUSE_S)

    def stream(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[Step]:
        """The request for a stream of answers from the replica whose turn it is; it is not made again at another."""
        if self._addresses.is_name:
            self._renew_soon()
        call = UserCall(arrays, terms, deadline_after(terms.timeout_s), repeats=False)
        chosen = self._next([], [], terms) or self._all[0]
        if chosen.error:
            yield from chosen.look(self.metadata, call.left_s())
        if chosen.error:
            raise copy.copy(chosen.error)
        step = yield from chosen.at(chosen.exchange.stream(arrays, call.limited(None)))
        return step._replace(url=chosen.url, timeout_s=terms.timeout_s, deadline=call.deadline)

    @contextlib.contextmanager
    def streaming(self, url: str) -> Iterator[None]:
        """Keep the connection to a replica while it streams; one that breaks off gets no more requests for now."""
        replicas = [replica for replica in self._all if replica.url == url]  # none if it has just left DNS
        with self._lock:
            for replica in replicas:
                replica.calls += 1
        try:
            yield
        except TimedOutError:  # it may hang, or answer longer than the caller waits
            for replica in replicas:
                self._watch(replica)
            raise
        except ClientError as error:
            for replica in replicas:
                if error.retryable or not isinstance(error, NotReadyError):  # else a model that this one calls
                    self._leave_out(replica, error)
            raise
        finally:
            with self._lock:
                for replica in replicas:
                    replica.calls -= 1

    def _round(self, call: UserCall, errors: list[ClientError]) -> Steps[dict[str, Array] | None]:
        """The outputs from the first replica that gives them; None if there is no other one to try.

        Adds the errors of the others to `errors`, and raises the one after which the call must not be made again.
        """
        tried: list[Replica] = []
        while chosen := self._next(tried, errors, call.terms):
            tried.append(chosen)
            try:
                return (yield from self._try(chosen, call))
            except ClientError as error:
                errors.append(error)
                if isinstance(error, TimedOutError) and call.is_over():
                    self._watch(chosen)
                    raise timed_out(call.terms.timeout_s, chosen.url, self._model) from error
                self._leave_out(chosen, error)
                if not self._retries.goes_on(errors, repeats=call.repeats):
                    raise
        return None

    def close(self) -> Steps[None]:
        """Unregister the shared memory of all servers."""
        self._closed = True
        for replica in self._all:
            yield from replica.close()

    def _exchange(self, endpoint: Endpoint) -> Exchange:
        return Exchange(self._model, self._version, endpoint, self._asked)

    def _replica(self, endpoint: Endpoint) -> Replica:
        self.endpoints[endpoint.url] = endpoint
        return Replica(endpoint, self._exchange(endpoint))

    def _next(self, tried: Sequence[Replica], errors: Sequence[ClientError], terms: Terms) -> Replica | None:
        """The replica whose turn it is, of those that were not tried yet; None if none is left.

        One that did not answer lately is left only if no connection of this request could be made or kept. All requests
        of a sequence go to the same replica.
        """
        parameters = terms.parameters or {}
        if sequence := parameters.get("sequence_id"):
            return None if tried else self._of_sequence(sequence, ends=bool(parameters.get("sequence_end")))
        free = [replica for replica in self._all if replica not in tried]
        working = [replica for replica in free if replica.error is None]
        if not working and all(isinstance(error, ServerUnreachableError) for error in errors):
            working = free
        return working[next(self._turns) % len(working)] if working else None

    def _of_sequence(self, sequence: Parameter, *, ends: bool) -> Replica:
        """The replica of a sequence: the same one until the sequence or the replica ends, also if new ones come."""
        with self._lock:
            url = self._sequences.pop(sequence, None)
            known = [replica for replica in self._all if replica.url == url]
            chosen = max(known or self._all, key=lambda replica: crc32(f"{sequence} {replica.url}".encode()))
            if not ends:
                self._sequences[sequence] = chosen.url
                if len(self._sequences) > MOST_SEQUENCES:
                    del self._sequences[next(iter(self._sequences))]
        return chosen

    def _try(self, replica: Replica, call: UserCall) -> Steps[dict[str, Array]]:
        """The outputs from one replica; raises a `ClientError`, after `try_timeout_s` too if the call repeats."""
        with self._lock:
            replica.calls += 1
        try:
            if replica.error:
                yield from replica.look(self.metadata, call.left_s())
            if replica.error:
                raise copy.copy(replica.error)
            terms = call.limited(self._retries.try_timeout_s)
            return (yield from replica.at(replica.exchange.infer(call.arrays, terms)))
        finally:
            with self._lock:
                replica.calls -= 1

    def _leave_out(self, replica: Replica, error: ClientError) -> None:
        """Give a replica no more requests if this error shows that it does not answer."""
        hangs = isinstance(error, TimedOutError) and error.status == "DEADLINE_EXCEEDED"
        if hangs or isinstance(error, ServerUnreachableError):
            replica.error = error
            self._watch(replica)

    def _watch(self, replica: Replica) -> None:
        """Look at a replica in the background until it answers."""
        with self._lock:
            starts = not (replica.is_watched or self._closed)
            replica.is_watched = replica.is_watched or starts
        if starts:
            self.start(self._watching(replica))

    def _watching(self, replica: Replica) -> Steps[None]:
        while not self._closed and replica in self._all:
            yield from replica.look(self.metadata)
            with self._lock:
                if replica.error is None:
                    replica.is_watched = False
                    return
            yield Pause(AGAIN_S)

    def _renew_soon(self) -> None:
        """Resolve the name again, in the background, if its addresses are old."""
        with self._lock:
            if self._renews or self._closed or seconds_until(self._renewed + RENEW_S):
                return
            self._renews = True
        self.start(self._renewing())

    def _renewing(self) -> Steps[None]:
        """Take the name's addresses of now; replicas that are not among them end after their requests."""
        try:
            old = yield from self._renew()
        finally:
            self._renewed, self._renews = time.monotonic(), False
        for replica in old:
            while replica.calls and not self._closed:
                yield Pause(AGAIN_S)
            if all(other.url != replica.url for other in self._all):  # its address may have come back
                yield from replica.end()

    def _renew(self) -> Steps[list[Replica]]:
        """Resolve the name, look at the replicas that are new, and use them; returns those that are gone."""
        endpoints = {endpoint.url: endpoint for endpoint in (yield Work(self._addresses.now, _ignore))}
        known = {replica.url for replica in self._all}
        new = [self._replica(endpoint) for url, endpoint in endpoints.items() if url not in known]
        for replica in new:
            yield from replica.look(self.metadata)
        old = [replica for replica in self._all if replica.url not in endpoints]
        self._all = (*(replica for replica in self._all if replica.url in endpoints), *new)
        for replica in new:
            if replica.error:
                self._watch(replica)
        return old

    def _together(self, errors: Sequence[ClientError]) -> ClientError:
        """One error for those of all replicas that were tried."""
        if len(errors) == 1 or not isinstance(errors[-1], ServerUnreachableError):
            return copy.copy(errors[-1])
        kinds = {type(error) for error in errors}
        reasons = "; ".join(f"{error.url}: {error.text or error}" for error in errors)
        return (kinds.pop() if len(kinds) == 1 else ServerUnreachableError)(
            f"{self._addresses.url}: no replica answers for '{self._model}': {reasons}. Start them: "
            f"{serve(self._model)}.",
            status=errors[-1].status,
            text=reasons,
            model=self._model,
            url=self._addresses.url,
            retryable=all(error.retryable for error in errors),
        )


def _none_is_there(errors: Sequence[ClientError]) -> bool:
    """Whether servers may only be away for a moment: they start again, or gRPC waits before it connects again."""
    return all(isinstance(error, ServerUnreachableError) and not isinstance(error, TlsError) for error in errors)


def _ignore(_: object) -> None:
    """Addresses need no undoing."""
