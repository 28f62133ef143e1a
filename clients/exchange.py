"""The way from a caller's arrays to its answer: the steps that both clients run, and the choice of the transport."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import protocol as pb
from . import transport as transports
from . import wire
from .contract import SIGNATURE, Array, Metadata
from .endpoint import Endpoint
from .errors import AccessError, InvalidInputError, ServerFailureError, TransportError
from .steps import Step, Steps, deadline_after
from .terms import Terms, sendable

if TYPE_CHECKING:
    from .rest_wire import Requests
    from .shared_memory import SharedMemory

LIGHT_BYTES = 1 << 18
"""With "auto", tensors of fewer bytes than this, in and out together, travel in the message (see the README)."""


ASKS_FOR_END = {"triton_enable_empty_final_response": True}
"""The parameter of a request that asks for a last answer without outputs, if the last one was not known to be it."""


class Exchange:
    """One model on one server over one transport; `metadata` is set by `open`."""

    metadata: Metadata
    _http: "Requests | None" = None

    def __init__(self, model: str, version: str, endpoint: Endpoint, transport: object) -> None:
        """Raises `TransportError`, `AddressError` and `InvalidInputError`."""
        self.transport = transports.checked(transport, endpoint, model)
        sendable(model, "the model's name")
        sendable(version, "version")
        self._model, self._version, self._endpoint = model, version, endpoint
        self._shared: SharedMemory | None = None
        self._heads: dict[object, bytes] = {}
        self._messages: dict[object, bytes] = {}
        self._usual: Terms | None = None  # the last terms that add nothing
        if self.transport == "http":
            from . import rest_wire

            self._http = rest_wire.Requests(endpoint, model, version)

    def open(self, timeout_s: float | None) -> Steps[Metadata]:
        """Read the model's configuration and, if its rows are heavy, register shared memory.

        Raises `ServerUnreachableError`, `NotReadyError`, and `TransportError` if shared memory was asked for by name
        and does not work.
        """
        yield from self.look(timeout_s)
        yield from self.share()
        return self.metadata

    def look(self, timeout_s: float | None) -> Steps[None]:
        """Read the server's version and the model's configuration."""
        if self.transport not in ("http", "custom"):
            # The connection reads the version, to know what the server survives; some servers do not tell it.
            with contextlib.suppress(AccessError, InvalidInputError, ServerFailureError):
                yield Step("ServerMetadata", b"", timeout_s=timeout_s)
        message = self._http.config if self._http else self._config_request()
        answer = yield Step("ModelConfig", message, timeout_s=timeout_s)
        self.metadata = Metadata.of(answer.config)

    def share(self) -> Steps[None]:
        """Prepare shared memory, if the transport allows it; raises `TransportError` as for `open`."""
        if self.transport in ("auto", "shared_memory"):
            from .shared_memory import SharedMemory

            self._shared = SharedMemory(self.metadata, self._endpoint, self._version)
        if self._shared and (self.transport == "shared_memory" or self._weight(1) >= LIGHT_BYTES):
            yield from self._shared.prepare(self._weight(1))
            self._demand()

    def infer(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[dict[str, Array]]:
        """The outputs by name for checked `arrays`; raises a `ClientError`."""
        deadline = deadline_after(terms.timeout_s)
        if self._shared and self._is_heavy(arrays):
            outputs = yield from self._shared.infer(arrays, terms)
            if outputs is not None:
                return outputs
            self._demand()
        return self.outputs((yield self._request(arrays, terms, deadline)))

    def stream(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[Step]:
        """The request for a stream of answers, whose tensors travel in messages; raises `TransportError` over HTTP."""
        if self.transport in ("http", "custom"):
            raise TransportError(
                f"{self._endpoint.url}: a stream of answers travels over gRPC, and this client speaks "
                f"{'HTTP' if self._http else 'through a transport of your own'}. Give the server's gRPC address "
                '(url="localhost:8001"); Triton streams JSON over HTTP at /v2/models/NAME/generate_stream.',
                model=self._model,
                url=self._endpoint.url,
            )
        yield from ()  # no call comes before it, as it may where several replicas serve (replicas.py)
        step = self._request(arrays, terms, deadline_after(terms.timeout_s))
        return step._replace(method="ModelStreamInfer", message=step.message + wire.options(parameters=ASKS_FOR_END))

    def direct(self, arrays: Mapping[str, Array], terms: Terms) -> Step | None:
        """The only step of `infer`, whose result `outputs` takes; None if it has others."""
        if self._shared and self._is_heavy(arrays):
            return None
        step = self._request(arrays, terms, deadline_after(terms.timeout_s))
        signature = self.metadata.signature(list(arrays.values()))
        if signature is not None and self._adds_nothing(terms):
            if len(self._messages) >= wire.HEADS:
                self._messages.clear()
            self._messages[signature] = step.message
        return step

    def repeated(self, arrays: Sequence[Any], terms: Terms) -> Step | None:
        """The step that `direct` gives, if arrays of the same signature have passed it before; they need no check."""
        try:
            message = self._messages.get(tuple(map(SIGNATURE, arrays)))
        except Exception:  # anything may be passed; the check says what is wrong with it
            return None
        if message is None or not (terms is self._usual or self._adds_nothing(terms)):
            return None
        self._usual, timeout_s = terms, terms.timeout_s
        deadline = None if timeout_s is None else deadline_after(timeout_s)
        try:
            tensors = [array.data.cast("B") for array in arrays]
        except (TypeError, ValueError):  # not contiguous, without elements, or of a dtype that memoryview does not know
            tensors = list(map(wire.contents, arrays))
        return Step("ModelInfer", message, tensors, timeout_s, deadline)

    def _adds_nothing(self, terms: Terms) -> bool:
        """Whether the message is the same as without these terms."""
        if terms.request_id or terms.priority or terms.parameters:
            return False
        return terms.timeout_s is None or not terms.server_timeout_us(self.metadata.longest_server_deadline_s)

    def outputs(self, answer: Any) -> dict[str, Array]:
        """The outputs by name in the answer to an inference request."""
        return answer if self._http else wire.answers(answer)

    def _request(self, arrays: Mapping[str, Array], terms: Terms, deadline: float | None) -> Step:
        tensors = list(map(wire.contents, arrays.values()))
        longest_s = self.metadata.longest_server_deadline_s
        if self._http:
            limit_us = terms.server_timeout_us(longest_s) if terms.timeout_s else 0
            message = self._http.infer(arrays, tensors, terms, limit_us)
        else:
            message = self._head(arrays) + terms.encoded(longest_server_deadline_s=longest_s)
        return Step("ModelInfer", message, tensors, terms.timeout_s, deadline, terms.request_id)

    def close(self) -> Steps[None]:
        """Unregister the shared memory."""
        if self._shared:
            yield from self._shared.close()

    def _config_request(self) -> bytes:
        return bytes(pb.ModelConfigRequest(name=self._model, version=self._version).SerializeToString())

    def _demand(self) -> None:
        """Raise `TransportError` if shared memory was asked for by name and does not work."""
        if self.transport == "shared_memory" and not (self._shared and self._shared.works):
            said = f" It said: {self._shared.refusal}" if self._shared and self._shared.refusal else ""
            raise TransportError(
                f"{self._endpoint.url}: the server cannot open this machine's shared memory: it runs on another host, "
                "in a container with its own /dev/shm, as another user, or allows it only with a secret (headers=) or, "
                f'from release 26.04 on, with --allow-client-shm=true. Use transport="auto".{said}',
                model=self._model,
                url=self._endpoint.url,
            )

    def _weight(self, rows: int) -> int:
        """The bytes of the tensors of a request and its answer, as far as the configuration tells."""
        return rows * sum(tensor.row_bytes or 0 for tensor in (*self.metadata.inputs, *self.metadata.outputs))

    def _is_heavy(self, arrays: Mapping[str, Array]) -> bool:
        if self.transport == "shared_memory":
            return True
        rows = len(next(iter(arrays.values()))) if self.metadata.max_batch_size and arrays else 1
        out = rows * sum(tensor.row_bytes or 0 for tensor in self.metadata.outputs)
        return out + sum(map(wire.size, arrays.values())) >= LIGHT_BYTES

    def _head(self, arrays: Mapping[str, Array]) -> bytes:
        key = tuple((name, array.shape) for name, array in arrays.items())
        if head := self._heads.get(key):
            return head
        if len(self._heads) >= wire.HEADS:
            self._heads.clear()
        shapes = ((name, wire.datatype(array), array.shape) for name, array in arrays.items())
        # The value is not read from the dict again: another thread may clear that.
        head = self._heads[key] = wire.head(self._model, self._version, shapes)
        return head
