"""Base class for a Python model with hooks that take whole batches; each request succeeds or fails on its own.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project:

    from batch_hooks import BatchHooks

    class TritonPythonModel(BatchHooks):
        def infer(self, batch):
            return {"SUM": batch["VALUES"].sum(axis=1, keepdims=True)}
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
"""Arrays by tensor name."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
# Calls to other models wait, so they need threads, not cores.
CALLS = 32


class Request:
    """One client's request: its inputs by name, each (rows, ...), and its answer or the reason why it failed.

    `data` is for the hooks' own use.
    """

    def __init__(self, inputs: Arrays, *, id: str = "") -> None:
        self.inputs, self.id = inputs, id
        self.rows = len(next(iter(inputs.values())))
        self.data: Any = None
        self.answer: Arrays | None = None
        self.reason: str | None = None
        self.bad = False
        """Whether the error is the client's, not the model's."""
        self.code = "INTERNAL"
        """The name of the error in Triton's `TritonError`."""

    def fail(self, reason: str, *, bad: bool = True, unavailable: bool = False) -> None:
        """End this request with an error; the others of the batch run without it.

        The code is UNAVAILABLE if a later try may succeed, INVALID_ARG if the request is `bad`, else INTERNAL.
        """
        self.reason, self.bad, self.answer = reason, bad and not unavailable, None
        self.code = "UNAVAILABLE" if unavailable else "INVALID_ARG" if bad else "INTERNAL"


def accepted(requests: Sequence[Request]) -> list[Request]:
    """The requests that have not failed."""
    return [request for request in requests if request.reason is None]


def pack(requests: Sequence[Request]) -> dict[str, Any]:
    """The rows of all accepted requests, in one array per input name.

    Raises `ValueError` if shapes differ, or if only some requests have an optional input.
    """
    parts = accepted(requests)
    if any(request.inputs.keys() != parts[0].inputs.keys() for request in parts):
        raise ValueError("some requests have an optional input that others lack, so their rows cannot be packed.")
    return {name: np.concatenate([request.inputs[name] for request in parts]) for name in parts[0].inputs}


def split(results: Arrays, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Each request's own rows of `results` (views); raises `ValueError` for another number of rows."""
    ends = np.cumsum([request.rows for request in requests])
    for name, array in results.items():
        if len(array) != ends[-1]:
            raise ValueError(f"{name} has {len(array)} rows for {ends[-1]} rows of the requests. Return one for each.")
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    return [{name: array[start:end] for name, array in results.items()} for start, end in bounds]


class CallError(Exception):
    """Another model refused or failed a call; `unavailable` if it is overloaded (its queue is full)."""

    def __init__(self, text: str, *, unavailable: bool = False) -> None:
        super().__init__(text)
        self.unavailable = unavailable


class BatchHooks:
    """Base class of a `TritonPythonModel`; override the hooks that you need.

    If a hook raises, the batch is halved and run again until the failing request runs alone. It gets the error, and the
    others get their answers. A request on which a hook calls `fail` costs no second run.
    """

    config: Mapping[str, Any]
    """The model's configuration, as Triton's JSON."""
    folder: Path
    """The version's folder, with the files beside model.py."""

    def setup(self) -> None:
        """Load what the hooks need, once per instance; raise `ValueError` to refuse the load."""

    def batch_preprocess(self, requests: Sequence[Request]) -> Any:
        """The argument of `infer` for the accepted requests; call `fail` on requests that cannot be served."""
        return pack(requests)

    def infer(self, batch: Any) -> Any:
        """Run the whole batch once."""
        return batch

    def batch_postprocess(self, results: Any, requests: Sequence[Request]) -> Sequence[Arrays]:
        """Outputs by name for each of `requests`, which are the accepted ones in order."""
        return split(results, requests)

    def run(self, requests: Sequence[Request]) -> None:
        """Give each request its answer or its error."""
        try:
            batch = self.batch_preprocess(requests)
            if not (remaining := accepted(requests)):
                return
            answers = self.batch_postprocess(self.infer(batch), remaining)
            for request, answer in zip(remaining, answers, strict=True):
                if request.reason is None:
                    request.answer = answer
        except Exception as error:
            remaining = accepted(requests)
            if isinstance(error, CallError) and error.unavailable:
                # An overloaded model would refuse the calls of both halves too.
                for request in remaining:
                    request.fail(str(error), unavailable=True)
                return
            if len(requests) == 1:
                requests[0].fail(f"{type(error).__name__}: {error}", bad=False)
                return
            for half in (remaining[: len(remaining) // 2], remaining[len(remaining) // 2 :]):
                if half:
                    self.run(half)

    # Triton calls the following functions.

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by Triton once per instance."""
        import triton_python_backend_utils as pb_utils

        self.triton = pb_utils
        self.config = json.loads(args["model_config"])
        self.folder = Path(args["model_repository"]) / args["model_version"]
        self._hook_labels = {"model": args["model_name"], "version": args["model_version"]}
        self._hook_families: dict[str, Any] = {}
        self._hook_calls: ThreadPoolExecutor | None = None
        self._hook_batches = self.histogram("batch_hooks_rows", "Rows that ran together, once per execution", ROWS)
        failures = "Requests that ended with an error, by who is to blame"
        self._hook_failed = {
            bad: self.counter("batch_hooks_failed_requests", failures, blame="request" if bad else "model")
            for bad in (True, False)
        }
        self._hook_limit: Any = None
        try:
            if "queue_limit_ms" in self.config.get("parameters", {}):
                from queue_limit import QueueLimit

                self._hook_limit = QueueLimit.of(self.config, args, pb_utils)
            self.setup()
        except ValueError as error:
            raise pb_utils.TritonModelException(f"{args['model_name']}: {error}") from error

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Called by Triton with each batch; one response per request, in order."""
        return self._hook_limit.apply(requests, self._answers) if self._hook_limit else self._answers(requests)

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        batch = [
            Request({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}, id=request.request_id())
            for request in requests
        ]
        self.run(batch)
        self._hook_batches.observe(sum(request.rows for request in batch))
        return [self._response(request) for request in batch]

    def _response(self, request: Request) -> Any:
        tensors = []
        try:
            for name, array in (request.answer or {}).items():
                tensors.append(self.triton.Tensor(name, np.ascontiguousarray(array)))
        except Exception as error:  # an array of a type that Triton does not have
            request.fail(f"{name}: {type(error).__name__}: {error}", bad=False)
        if request.answer is None:
            self._hook_failed[request.bad].increment(1)
            code = getattr(self.triton.TritonError, request.code)
            return self.triton.InferenceResponse(error=self.triton.TritonError(request.reason or "no answer", code))
        return self.triton.InferenceResponse(tensors)

    def parameter(self, name: str, default: str) -> str:
        """A value of `parameters` in config.pbtxt."""
        return str(self.config.get("parameters", {}).get(name, {}).get("string_value", default))

    def call(self, model: str, inputs: Sequence[Arrays], outputs: Sequence[str]) -> list[Arrays | CallError]:
        """Send one request for each of `inputs` to another model, all at once, so that its batcher joins them."""
        if len(inputs) == 1:
            return [self._call(model, inputs[0], outputs)]
        self._hook_calls = self._hook_calls or ThreadPoolExecutor(CALLS)
        return list(self._hook_calls.map(lambda arrays: self._call(model, arrays, outputs), inputs))

    def _call(self, model: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays | CallError:
        tensors = [self.triton.Tensor(name, array) for name, array in inputs.items()]
        # CPU memory, also for the outputs of a model on a GPU, because numpy needs it.
        memory = self.triton.PreferredMemory(self.triton.TRITONSERVER_MEMORY_CPU, 0)
        answer = self.triton.InferenceRequest(
            model_name=model, requested_output_names=list(outputs), inputs=tensors, preferred_memory=memory
        ).exec()
        if answer.has_error():
            error = answer.error()
            return CallError(error.message(), unavailable=error.code() == self.triton.TritonError.UNAVAILABLE)
        return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}

    # Custom metrics on Triton's /metrics; all instances of a model add to one series. An update takes about 60 us, so
    # count once per batch, not per row.

    def counter(self, name: str, description: str, **labels: str) -> Any:
        """A metric that only grows; use `.increment(amount)`."""
        return self._family(name, description, "COUNTER").Metric(labels={**self._hook_labels, **labels})

    def gauge(self, name: str, description: str, **labels: str) -> Any:
        """A metric that goes up and down; use `.set(value)` and `.increment(amount)`."""
        return self._family(name, description, "GAUGE").Metric(labels={**self._hook_labels, **labels})

    def histogram(self, name: str, description: str, buckets: Sequence[float], **labels: str) -> Any:
        """Counts of values up to each of `buckets`; use `.observe(value)`. Needs release 24.10."""
        return self._family(name, description, "HISTOGRAM").Metric(
            labels={**self._hook_labels, **labels}, buckets=list(buckets)
        )

    def _family(self, name: str, description: str, kind: str) -> Any:
        # The family must live as long as its metrics, because Triton removes both with it.
        if name not in self._hook_families:
            family = self.triton.MetricFamily
            self._hook_families[name] = family(name=name, description=description, kind=getattr(family, kind))
        return self._hook_families[name]
