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
`service_pb2`. Through a transport of your own, tensors always travel in the message.
"""

from typing import Any, Literal, Protocol

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


def checked(transport: object, endpoint: Endpoint, model: str) -> str:
    """The transport's name, with "auto" replaced by "http" for an HTTP address; "custom" for an object.

    Raises `TransportError` for another name or an object without `call`, `AddressError` if the address contradicts it.
    """
    if isinstance(transport, str) and transport in NAMES:
        return endpoint.over(transport)
    if not isinstance(transport, str) and callable(getattr(transport, "call", None)):
        return "custom"
    raise TransportError(
        f'transport="{transport}" is none of {", ".join(NAMES)}. Write one of them, or give an object with call and '
        "close.",
        model=model,
        url=endpoint.url,
    )


def connect(endpoint: Endpoint, name: str) -> BlockingTransport:
    """A blocking connection over HTTP or gRPC. Their libraries are imported here, since that takes its time."""
    if name == "http":
        from .rest import BlockingRestConnection

        return BlockingRestConnection(endpoint)
    from .connection import BlockingConnection

    return BlockingConnection(endpoint)


def connect_async(endpoint: Endpoint, name: str, in_flight: InFlight) -> AsyncTransport:
    """A connection for asyncio over HTTP or gRPC."""
    if name == "http":
        from .rest import RestConnection

        return RestConnection(endpoint, in_flight)
    from .connection import Connection

    return Connection(endpoint, in_flight)
