"""What happens between a caller's arrays and its answer, over the transport that suits: the steps of both clients."""

from collections.abc import Mapping
from typing import Literal, get_args

from tritonclient.grpc import service_pb2 as pb

from clients import wire
from clients.contract import Array, Metadata
from clients.endpoint import Endpoint
from clients.errors import TransportError
from clients.layout import contents
from clients.shared_memory import SharedMemory
from clients.steps import Step, Steps, ending
from clients.terms import Terms, sendable

Transport = Literal["auto", "shared_memory", "grpc", "http"]
LIGHT_BYTES = 1 << 16
"""With "auto", tensors of fewer bytes than this, in and out together, travel in the message: see README.md."""


class Exchange:
    """One model on one server over one transport. `metadata` is there once it is open."""

    metadata: Metadata

    def __init__(self, model: str, version: str, endpoint: Endpoint, transport: Transport) -> None:
        if transport not in (known := get_args(Transport)):
            raise TransportError(
                f'transport="{transport}" is none of {", ".join(known)}. Write one of them.',
                model=model,
                url=endpoint.url,
            )
        sendable(model, "the model's name")
        sendable(version, "version")
        self._model, self._version, self._endpoint = model, version, endpoint
        self._transport = endpoint.over(transport)
        self._shared: SharedMemory | None = None
        self._heads: dict[object, bytes] = {}

    def open(self, timeout_s: float | None) -> Steps[Metadata]:
        """Ask for the model's configuration and, where its rows are heavy, for shared memory.

        Raises `ServerUnreachableError`, `NotReadyError`, and `TransportError` when shared memory was asked for by
        name and cannot be had.
        """
        request = pb.ModelConfigRequest(name=self._model, version=self._version)
        answer = yield Step("ModelConfig", request.SerializeToString(), timeout_s=timeout_s)
        self.metadata = Metadata.of(answer.config)
        if self._transport in ("auto", "shared_memory"):
            self._shared = SharedMemory(self.metadata, self._endpoint, self._version)
        if self._shared and (self._transport == "shared_memory" or self._weight(1) >= LIGHT_BYTES):
            yield from self._shared.prepare(self._weight(1))
            self._demand()
        return self.metadata

    def infer(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[dict[str, Array]]:
        """Outputs by name for checked `arrays`; raises a `ClientError`."""
        ends = ending(terms.timeout_s)
        added = terms.written(queue_timeout=self.metadata.queue_timeout)
        if self._shared and self._heavy(arrays):
            found = yield from self._shared.infer(arrays, added, terms.timeout_s)
            if found is not None:
                return found
            self._demand()
        tensors = [tensor for tensor in (yield from contents(arrays.values())) if tensor is not None]
        response = yield Step("ModelInfer", self._head(arrays) + added, tensors, terms.timeout_s, ends)
        return wire.answers(response)

    def close(self) -> Steps[None]:
        """Let go of the shared memory."""
        if self._shared:
            yield from self._shared.close()

    def _demand(self) -> None:
        if self._transport == "shared_memory" and not (self._shared and self._shared.works):
            raise TransportError(
                f"{self._endpoint.url}: the server cannot open this machine's shared memory: it runs on another host, "
                "in a container with its own /dev/shm, as another user, or asks for its secret before it does "
                '(headers=, see serve/README.md). Use transport="auto".',
                model=self._model,
                url=self._endpoint.url,
            )

    def _weight(self, rows: int) -> int:
        """Bytes of the tensors of a request and its answer, as far as the configuration tells."""
        return rows * sum(one.row_bytes or 0 for one in (*self.metadata.inputs, *self.metadata.outputs))

    def _heavy(self, arrays: Mapping[str, Array]) -> bool:
        if self._transport == "shared_memory":
            return True
        rows = len(next(iter(arrays.values()))) if self.metadata.max_batch_size and arrays else 1
        out = rows * sum(one.row_bytes or 0 for one in self.metadata.outputs)
        return out + sum(map(wire.size, arrays.values())) >= LIGHT_BYTES

    def _head(self, arrays: Mapping[str, Array]) -> bytes:
        key = tuple((name, array.shape) for name, array in arrays.items())
        if head := self._heads.get(key):
            return head
        if len(self._heads) >= wire.HEADS:
            self._heads.clear()
        shapes = ((name, wire.datatype(array), array.shape) for name, array in arrays.items())
        # Not read back: another thread may clear them.
        head = self._heads[key] = wire.head(self._model, self._version, shapes)
        return head
