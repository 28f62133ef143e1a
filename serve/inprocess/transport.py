"""The transports that `open` and `open_async` make: calls of `Model` and `AsyncModel` run in this process."""

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from clients.errors import ClosedError, explained, timed_out
from clients.model import closed_message
from clients.steps import Step, Work, deadline_after, run, run_async
from serve.inprocess.contract import HEADS
from serve.inprocess.loaded import LoadedModel, Statistics
from serve.inprocess.request import Refused, Request

LATE = "Request timeout expired"
# TritonError's codes in their order, as names of gRPC's status.
STATUS = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARGUMENT",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


class _Transport:
    """The models that one client has loaded, and the steps of its calls."""

    def __init__(self, repository: str | os.PathLike[str]) -> None:
        self._repository, self._process = Path(repository), os.getpid()
        self._models: dict[tuple[str, str], LoadedModel] = {}
        self._routes: dict[bytes, LoadedModel] = {}
        self._loading, self._closed = threading.Lock(), False
        _OPEN.add(self)

    def statistics(self, model: str, version: str = "") -> Statistics:
        """How many executions a loaded model has run, by their rows; raises `KeyError` if it is not loaded."""
        return self._models[model, version].statistics()

    def _steps(self, step: Step, model: str) -> Generator[Any, Any, Any]:
        if self._process != os.getpid():
            raise ClosedError(closed_message(model))
        if step.method == "ModelConfig":
            asked = service_pb2.ModelConfigRequest.FromString(step.message)
            loaded = yield Work(lambda: self._load(asked.name, asked.version, opens=True), _nothing)
            return service_pb2.ModelConfigResponse(config=loaded.config)
        if step.method != "ModelInfer":
            raise explained("UNIMPLEMENTED", f"{step.method} needs a server", str(self._repository), model)
        try:
            return (yield from self._infer(step, model))
        except Refused as refused:
            raise explained(refused.status, refused.text, str(self._repository), model) from None

    def _infer(self, step: Step, model: str) -> Generator[Any, Any, Any]:
        loaded = self._routes.get(step.message)
        if loaded is None:
            asked = service_pb2.ModelInferRequest.FromString(step.message)
            key = asked.model_name, asked.model_version
            loaded = self._models.get(key) or (yield Work(lambda: self._load(*key), _nothing))
            if len(self._routes) >= HEADS:
                self._routes.clear()
            if step.tensors:
                self._routes[step.message] = loaded
        request = loaded.submit(step.message, step.tensors)
        deadline = deadline_after(step.timeout_s) if step.deadline is None else step.deadline
        request.waiter = self._waiter()
        if not loaded.batches.put(request):
            self._routes.pop(step.message, None)
            raise ClosedError(closed_message(model))
        try:
            while not (yield request, _earlier(deadline, request.expires)):
                if deadline is not None and time.monotonic() >= deadline:
                    raise timed_out(step.timeout_s, str(self._repository), model)
                if loaded.batches.remove(request):
                    raise Refused("UNAVAILABLE", request.marked(LATE))
                request.expires = None  # it runs
        except BaseException:
            request.left = True
            loaded.batches.remove(request)
            raise
        outcome = request.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        if outcome.has_error():
            error = outcome.error()
            is_triton = hasattr(error, "code")
            raise Refused(
                STATUS[error.code()] if is_triton else "INTERNAL", error.message() if is_triton else str(error)
            )
        return loaded.contract.answer(outcome, request.head)

    def _load(self, name: str, version: str, *, opens: bool = False) -> LoadedModel:
        with self._loading:
            self._closed = self._closed and not opens
            if self._closed:
                raise ClosedError(closed_message(name))
            key = name, version
            if key not in self._models:
                self._models[key] = LoadedModel(self._repository, name, version, self._wake)
            return self._models[key]

    def _waiter(self) -> Any:
        raise NotImplementedError

    def _wake(self, requests: Sequence[Request]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """End all models; every call under way gets its answer or `ClosedError`."""
        if self._process != os.getpid():
            return
        with self._loading:
            self._closed = True
            models, self._models, self._routes = list(self._models.values()), {}, {}
        for model in models:
            model.close()


class InProcess(_Transport):
    """A `BlockingTransport` whose calls run in this process; several threads may use it together."""

    def call(self, step: Step, model: str) -> Any:
        """The answer to one call; raises a `ClientError`. The first call about a model loads it, in any time."""
        return run(self._steps(step, model), _wait)

    def close(self) -> None:
        """End all models: a call that waits raises `ClosedError`, one that runs has 5 s to be answered."""
        self.end()

    def _waiter(self) -> Any:
        lock = threading.Lock()
        lock.acquire()
        return lock

    def _wake(self, requests: Sequence[Request]) -> None:
        for request in requests:
            with contextlib.suppress(RuntimeError):
                request.waiter.release()


class AsyncInProcess(_Transport):
    """An `AsyncTransport` whose calls run in threads of this process."""

    async def call(self, step: Step, model: str) -> Any:
        """The answer to one call; raises a `ClientError`. A cancelled call that waits for a batch never runs."""
        return await run_async(self._steps(step, model), _wait_async)

    async def close(self) -> None:
        """End all models: a call that waits raises `ClosedError`, one that runs has 5 s to be answered."""
        await asyncio.to_thread(self.end)

    def _waiter(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def _wake(self, requests: Sequence[Request]) -> None:
        for loop, group in groupby(requests, lambda request: request.waiter.get_loop()):
            futures = [request.waiter for request in group]
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_resolve, futures)


def open(repository: str | os.PathLike[str]) -> InProcess:
    """A transport for `Model` that runs the models of a repository here; nothing is loaded before the first call."""
    return InProcess(repository)


def open_async(repository: str | os.PathLike[str]) -> AsyncInProcess:
    """The same for `AsyncModel`."""
    return AsyncInProcess(repository)


def _wait(item: tuple[Request, float | None]) -> bool:
    """Wait for a request's outcome until a time; returns whether it has one."""
    request, until = item
    return bool(request.waiter.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())))


async def _wait_async(item: tuple[Request, float | None]) -> bool:
    request, until = item
    if until is None:
        await request.waiter
        return True
    done, _ = await asyncio.wait((request.waiter,), timeout=max(0.0, until - time.monotonic()))
    return bool(done)


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _nothing(loaded: object) -> None:
    """A model that was loaded for a caller who left stays loaded, for the others."""


_OPEN: "weakref.WeakSet[_Transport]" = weakref.WeakSet()


def _end_all() -> None:
    """End all threads before Python ends: one that came back from onnxruntime after that would crash it."""
    for transport in list(_OPEN):
        transport.end()


atexit.register(_end_all)
