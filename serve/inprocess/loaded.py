"""A model in this process: its instances, each a thread with a session of its own, and the queue before them."""

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from clients.errors import ClosedError, NotReadyError
from clients.model import closed_message
from serve.inprocess import configuration, utilities
from serve.inprocess.batches import Batches
from serve.inprocess.contract import Contract
from serve.inprocess.modules import PrivateModules
from serve.inprocess.request import Request
from serve.inprocess.utilities import InferenceResponse, TritonError

QUEUE_LIMIT = "queue_limit_ms"
CLOSE_S = 5.0
"""How long `close` waits for executions; the calls in those that take longer end with `ClosedError`."""
# The backend freezes the objects of its process for the garbage collector. This process is the caller's.
_NO_FREEZING = SimpleNamespace(collect=lambda: 0, freeze=lambda: None)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a model has run: the number of executions by their rows, and when the last of them ended.

    `ended` is in seconds on the clock of `time.perf_counter`, 0 without any.
    """

    executions: Mapping[int, int]
    ended: float

    @property
    def rows(self) -> int:
        """The rows of all executions."""
        return sum(size * count for size, count in self.executions.items())

    @property
    def rows_per_execution(self) -> float:
        """Mean rows of an execution; 0 without any."""
        return self.rows / (sum(self.executions.values()) or 1)


class LoadedModel:
    """One version of a model, loaded and running; `wake` tells the callers of requests that these have an outcome.

    Raises `NotReadyError` and `TransportError`.
    """

    def __init__(self, repository: Path, name: str, version: str, wake: Callable[[Sequence[Request]], None]) -> None:
        source, self.config = configuration.find(repository, name, version)
        self.name, self.version, self._wake = name, source.version, wake
        self._instances: list[Instance] = []
        try:
            code = Code(source)
            configuration.complete(self.config, source, code.model, code.utilities)
            self.batches = Batches(self.config)
            for arguments in configuration.arguments(self.config, source):
                code = Code(source)
                if QUEUE_LIMIT in self.config.parameters:
                    code.count_waiting(self.batches)
                self._instances.append(Instance(code, arguments, self.batches, wake))
        except BaseException as error:
            for instance in self._instances:
                instance.end(0, str(error))
            if not isinstance(error, Exception):
                raise
            text = f"failed to load '{name}' version {source.version}: {error}"
            raise NotReadyError(
                f"{repository}: {text}",
                status="UNAVAILABLE",
                text=text,
                model=name,
                url=str(repository),
                retryable=False,
            ) from error
        self.contract = Contract(self.config, self.version, copies=self.config.backend == "python")
        for instance in self._instances:
            instance.start()

    def statistics(self) -> Statistics:
        """What it has run until now."""
        total, last = Counter[int](), 0.0
        for instance in self._instances:
            executed, ended = instance.ran()
            total.update(executed)
            last = max(last, ended)
        return Statistics(executions=dict(sorted(total.items())), ended=last)

    def submit(self, message: bytes, contents: Sequence[memoryview]) -> Request:
        """A new request, which is not queued yet; raises `Refused`."""
        return self.contract.request(message, contents, self._wake)

    def close(self) -> None:
        """End the instances; every request gets an outcome, the answer or `ClosedError`."""
        for request in self.batches.close():
            request.settle(ClosedError(closed_message(self.name)))
        for instance in self._instances:
            instance.end(CLOSE_S, closed_message(self.name))


class Code:
    """The model.py of one instance, with modules of its own."""

    def __init__(self, source: configuration.Source) -> None:
        self.utilities = utilities.module(source.version_folder)
        given = {"triton_python_backend_utils": self.utilities, "gc": _NO_FREEZING}
        self._modules = PrivateModules(source.code, given)
        self.model: type = self._modules.load("model").TritonPythonModel

    def count_waiting(self, batches: Batches) -> None:
        """Let a limit of the queue read these waiting requests, and not the metrics of a server."""
        self._modules.load("queue_limit").Pending = lambda *_: batches.count  # type: ignore[attr-defined]


class Instance:
    """One instance: the model, and the thread that runs its batches. Raises any error of its `initialize`."""

    def __init__(
        self,
        code: Code,
        arguments: dict[str, str],
        batches: Batches,
        wake: Callable[[Sequence[Request]], None],
    ) -> None:
        self._executed, self._ended, self._counting = Counter[int](), 0.0, threading.Lock()
        self._batches, self._wake = batches, wake
        self._name = arguments["model_instance_name"]
        self._running: Sequence[Request] = ()
        self._model = code.model()
        if hasattr(self._model, "initialize"):
            self._model.initialize(arguments)
        self._thread = threading.Thread(target=self._run, name=f"inprocess {self._name}", daemon=True)

    def start(self) -> None:
        """Begin to run batches."""
        self._thread.start()

    def ran(self) -> tuple[dict[int, int], float]:
        """The executions that have ended, by their rows, and when the last of them did."""
        with self._counting:
            return dict(self._executed), self._ended

    def end(self, seconds: float, text: str) -> None:
        """Wait for the last execution; a `ClosedError` with `text` ends its calls if it takes longer."""
        if self._thread.ident is None:
            self._finalize()
            return
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)
        for request in self._running:
            request.settle(ClosedError(text))

    def _run(self) -> None:
        while (batch := self._batches.take()) is not None:
            self._running = batch
            settled = self._execute(batch)
            self._count(sum(request.rows for request in batch))
            self._wake(settled)
            self._running = ()
        self._finalize()

    def _count(self, rows: int) -> None:
        with self._counting:
            self._executed[rows] += 1
            self._ended = time.perf_counter()

    def _execute(self, batch: list[Request]) -> Sequence[Request]:
        """Run a batch; returns the requests that have an outcome now."""
        try:
            responses = self._model.execute(batch)
            if responses is None:
                responses = [None] * len(batch)
            if len(responses) != len(batch):
                raise _ResponseError(
                    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                    f"InferenceRequest(s) size is:{len(batch)}, and InferenceResponse(s) size is:{len(responses)}\n"
                )
            for response in responses:
                if not isinstance(response, InferenceResponse | None):
                    raise _ResponseError(
                        "Expected an 'InferenceResponse' object in the execute function return list, found type "
                        f"'{type(response)}'."
                    )
        except BaseException as error:
            text = f"Failed to process the request(s) for model '{self._name}', message: {_told(error)}"
            responses = [InferenceResponse(error=TritonError(text)) for _ in batch]
        settled = []
        for request, response in zip(batch, responses, strict=True):
            # A request whose sender was taken is answered by that.
            if response is None and request.sender is None:
                response = InferenceResponse(error=TritonError(f"'{self._name}' gave no response to a request"))
            if response is not None and request.take(response):
                settled.append(request)
        return settled

    def _finalize(self) -> None:
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except Exception as error:
            utilities.Logger.log_error(f"'{self._name}' failed in finalize: {error}")
        del self._model


class _ResponseError(Exception):
    """A model gave another number of responses than it got requests, or other things than responses."""


def _told(error: BaseException) -> str:
    """An error of a model as the server tells it, with the innermost frame first."""
    if isinstance(error, _ResponseError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    at = "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames))
    return f"{type(error).__name__}: {error}" + (f"\n\nAt:\n{at}" if at else "")
