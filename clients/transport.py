"""Transports of your own: what carries a request's arrays to a model, in place of HTTP and gRPC.

    class Logging(Transport):
        def __init__(self, inner: Transport) -> None:
            self.inner = inner

        def describe(self, model: str, version: str) -> Mapping[str, Any]:
            return self.inner.describe(model, version)

        def infer(self, request: Request) -> Mapping[str, Array]:
            print(request.model, {name: array.shape for name, array in request.inputs.items()})
            return self.inner.infer(request)

    with Model("ranker", transport=Logging(...)) as model: ...

For `AsyncModel` the methods may be coroutine functions. What a transport raises reaches the caller as it is; raise a
`ClientError` where a server fails. `MockTransport` stands in for a server in tests of a program that calls a model.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._contract import Inputs
from ._options import CallOptions
from ._steps import INFER, Step
from ._tensors import Array
from .errors import TransportError
from .hooks import Request, request_of

Answer = Mapping[str, Array]
Tensors = Mapping[str, tuple[str, Sequence[int]]]
"""Datatypes and shapes by name: {"x": ("FP32", [-1])}, without the batch axis."""


class Transport:
    """What `transport=` takes beside the names. Threads, or tasks, may use one together."""

    def describe(self, model: str, version: str) -> Mapping[str, Any]:
        """The model as Triton's GET /v2/models/NAME/config or any server's GET /v2/models/NAME describes it.

        For example {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims":
        [-1]}], "output": [...]}. Raises a `ClientError`.
        """
        raise NotImplementedError

    def infer(self, request: Request) -> Answer:
        """The outputs by name for `request.inputs`, which fit the model. Raises a `ClientError`.

        `request.timeout_s` is the time that the caller has left, None for no limit.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the connection; the client calls this when it is closed."""


class MockTransport(Transport):
    """A model without a server: `answer` gets each request and returns the outputs by name. For both clients.

        double = MockTransport(
            lambda request: {"y": 2 * request.inputs["x"]}, inputs={"x": ("FP32", [-1])}, outputs={"y": ("FP32", [-1])}
        )
        model = Model("doubler", transport=double)

    `max_batch_size` 0 is a model without a batch axis. `requests` has what was asked so far. Raise a `ClientError` in
    `answer` to see what your program does about it.
    """

    def __init__(
        self, answer: Callable[[Request], Answer], *, inputs: Tensors, outputs: Tensors, max_batch_size: int = 8
    ) -> None:
        self._answer, self.requests = answer, list[Request]()
        self._configuration = {
            "max_batch_size": max_batch_size,
            "inputs": [{"name": name, "datatype": kind, "shape": dims} for name, (kind, dims) in inputs.items()],
            "outputs": [{"name": name, "datatype": kind, "shape": dims} for name, (kind, dims) in outputs.items()],
        }

    def describe(self, model: str, version: str) -> Mapping[str, Any]:
        """The inputs and outputs that it was given."""
        return {"name": model, **self._configuration}

    def infer(self, request: Request) -> Answer:
        """What `answer` makes of the request."""
        self.requests.append(request)
        return self._answer(request)


class CustomFormat:
    """The steps of a transport of the user: arrays are not encoded."""

    protocol = "custom"

    def __init__(self, transport: Any, url: str, model: str) -> None:
        self._transport, self._url, self._model = transport, url, model

    def configuration(self, options: CallOptions) -> Step:
        """The step that asks for the model's inputs and outputs."""
        return Step("custom", "ModelConfig", b"", self._mapping, options=options)

    def infer(self, inputs: Inputs, options: CallOptions, deadline: float | None, longest_s: float) -> Step:
        """The step that runs the model."""
        return Step("custom", INFER, b"", self._arrays, (), deadline, options, inputs.arrays)

    def _mapping(self, answer: Any) -> Any:
        if isinstance(answer, Mapping):
            return answer
        raise TransportError(
            f"transport={self._transport}: it returned {type(answer).__name__}. Let describe return the model as a "
            "mapping, and infer the arrays by the names of the outputs.",
            model=self._model,
            url=self._url,
        )

    def _arrays(self, answer: Any) -> dict[str, Array]:
        return {str(name): np.asarray(value) for name, value in self._mapping(answer).items()}


class CustomConnection:
    """Sends the steps of a transport of the user, blocking; raises `TransportError` for coroutine functions."""

    def __init__(self, transport: Any, url: str, model: str, version: str) -> None:
        methods = (transport.describe, transport.infer, transport.close)
        if type(self) is CustomConnection and any(map(inspect.iscoroutinefunction, methods)):
            raise TransportError(
                f"transport={transport}: one of its methods is a coroutine function, and Model is blocking. Use "
                "AsyncModel.",
                model=model,
                url=url,
            )
        self._transport, self._url, self._model, self._version = transport, url, model, version

    def _ask(self, step: Step) -> Any:
        if step.method != INFER:
            return self._transport.describe(self._model, self._version)
        return self._transport.infer(request_of(step, self._model, self._url))

    def send(self, step: Step) -> Any:
        """The transport's answer."""
        return step.read(self._ask(step))

    def close(self) -> Any:
        """Close the transport."""
        return self._transport.close()


class AsyncCustomConnection(CustomConnection):
    """Sends the steps of a transport of the user for asyncio; its methods may be plain functions that do not block."""

    async def send(self, step: Step) -> Any:
        """The transport's answer."""
        answer = self._ask(step)
        return step.read(await answer if inspect.isawaitable(answer) else answer)

    async def close(self) -> None:
        """Close the transport."""
        if inspect.isawaitable(closed := super().close()):
            await closed
