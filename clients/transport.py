"""What carries the calls of a client to a server: the names that `transport=` takes, and the protocol for your own.

    class Recording:
        def __init__(self, url: str) -> None:
            self.inner, self.methods = BlockingConnection(url), []

        def call(self, step: Step, model: str) -> Any:
            self.methods.append(step.method)
            return self.inner.call(step, model)

        def close(self) -> None:
            self.inner.close()

    with Model("ranker", transport=Recording("localhost:8001")) as model: ...

A client calls ModelConfig once and then ModelInfer for each request; the messages are those of tritonclient's
`service_pb2`, or `wire.Parted` for a large answer of our own connections. Through a transport of your own, tensors
always travel in the message.
"""

import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any, Literal, Protocol

from . import protocol as pb
from . import wire
from .endpoint import Endpoint
from .errors import TransportError
from .in_flight import InFlight
from .steps import Step

Transport = Literal["auto", "shared_memory", "grpc", "http"]
NAMES = ("auto", "shared_memory", "grpc", "http")


class BlockingTransport(Protocol):
    """What `Model(transport=...)` takes beside the names; several threads may use it together."""

    def call(self, step: Step, model: str) -> Any:
        """Send `step.body()` to the method `step.method`; return the parsed response message.

        `model` is for messages. Raises a `ClientError`; a call may take `step.left_s()` seconds.
        """

    def close(self) -> None:
        """End the connection; the client calls this when it is closed."""


class AsyncTransport(Protocol):
    """What `AsyncModel(transport=...)` takes beside the names: `BlockingTransport` with coroutines."""

    async def call(self, step: Step, model: str) -> Any:
        """Send `step.body()` to the method `step.method`; return the parsed response message."""

    async def close(self) -> None:
        """End the connection; the client calls this when it is closed."""


class BlockingStreaming(BlockingTransport, Protocol):
    """A connection over gRPC: `Exchange.stream` refuses all others before they are asked."""

    def stream(self, step: Step, model: str) -> Generator[Any, None, None]:
        """The answers to one request, as they come; raises a `ClientError`."""


class AsyncStreaming(AsyncTransport, Protocol):
    """`BlockingStreaming` for asyncio."""

    def stream(self, step: Step, model: str) -> AsyncGenerator[Any, None]:
        """The answers to one request, as they come; raises a `ClientError`."""


def checked(transport: object, endpoint: Endpoint, model: str) -> str:
    """The transport's name, with "auto" replaced by "http" for an HTTP address; "custom" for an object.

    Raises `TransportError` for another name, a class or an object without `call` and `close`, and `AddressError` if the
    address contradicts the name.
    """
    if isinstance(transport, str) and transport in NAMES:
        return endpoint.over(transport)
    methods = (getattr(transport, name, None) for name in ("call", "close"))
    if not isinstance(transport, str | type) and all(map(callable, methods)):
        return "custom"
    raise TransportError(
        f'transport="{transport}" is none of {", ".join(NAMES)}. Write one of them, or give an object (not its '
        "class) with call and close.",
        model=model,
        url=endpoint.url,
    )


def connect(endpoint: Endpoint, name: str, *, waits: bool = True) -> BlockingTransport:
    """A blocking connection over HTTP or gRPC. Their libraries are imported here, because that is slow.

    `waits` is whether a call over gRPC waits shortly for a server that is gone, in case it comes back.
    """
    if name == "http":
        from .rest import BlockingRestConnection

        return BlockingRestConnection(endpoint)
    from .channel import RECONNECT_S
    from .connection import BlockingConnection

    return BlockingConnection(endpoint, reconnect_s=RECONNECT_S if waits else 0)


def connect_async(endpoint: Endpoint, name: str, in_flight: InFlight, *, waits: bool = True) -> AsyncTransport:
    """A connection for asyncio over HTTP or gRPC."""
    if name == "http":
        from .async_rest import RestConnection

        return RestConnection(endpoint, in_flight)
    from .async_connection import Connection
    from .channel import RECONNECT_S

    return Connection(endpoint, in_flight, reconnect_s=RECONNECT_S if waits else 0)


class Custom:
    """A transport of the user behind `Model`; raises `TransportError` unless it is a `BlockingTransport`."""

    def __init__(self, transport: BlockingTransport, url: str, model: str) -> None:
        self._transport, self._url = transport, url
        if inspect.iscoroutinefunction(transport.call) or inspect.iscoroutinefunction(transport.close):
            raise TransportError(
                f"transport={transport}: its call or close is a coroutine function, and Model is blocking. Use "
                "AsyncModel.",
                model=model,
                url=url,
            )

    def call(self, step: Step, model: str) -> Any:
        """The transport's answer, if it is the message that the step asks for."""
        return _message(self._transport.call(step, model), self._transport, step, model, self._url)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


class AsyncCustom:
    """A transport of the user behind `AsyncModel`; raises `TransportError` unless it is an `AsyncTransport`."""

    def __init__(self, transport: AsyncTransport, url: str, model: str) -> None:
        self._transport, self._url, self._model = transport, url, model

    async def call(self, step: Step, model: str) -> Any:
        """The transport's answer, if it is the message that the step asks for."""
        answer = await self._awaitable(self._transport.call(step, model), "call")
        return _message(answer, self._transport, step, model, self._url)

    async def close(self) -> None:
        """Close the transport."""
        await self._awaitable(self._transport.close(), "close")

    def _awaitable(self, value: Any, method: str) -> Any:
        if inspect.isawaitable(value):
            return value
        raise TransportError(
            f"transport={self._transport}: its {method} is no coroutine function, and AsyncModel awaits it. Write "
            f"async def {method}, or use Model.",
            model=self._model,
            url=self._url,
        )


def _message(answer: Any, transport: object, step: Step, model: str, url: str) -> Any:
    """The answer if it is the response message of the step's method; raises `TransportError` otherwise."""
    if isinstance(answer, getattr(pb, f"{step.method}Response") | wire.Parted):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise TransportError(
        f"transport={transport}: its call returned {type(answer).__name__} for {step.method}. Let it return a "
        f"{step.method}Response of tritonclient's service_pb2.",
        model=model,
        url=url,
    )
