"""One model on one server: the steps from checked arrays to outputs, and the choice of what carries the tensors."""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._address import Address, addresses, checked_transport
from ._contract import Inputs, Metadata
from ._options import CallOptions, sendable
from ._steps import Step, Steps, deadline_after
from ._tensors import Array, size
from .errors import (
    AccessError,
    ClientError,
    InvalidInputError,
    NotReadyError,
    RequestFailedError,
    ServerFailureError,
    TransportError,
    not_tritons,
)

if TYPE_CHECKING:
    from ._shared_memory import SharedMemory

LARGE_BYTES, GRPC_BYTES = 1 << 18, 1 << 22
"""With "auto", tensors of the first size, in and out together, travel in shared memory if the server is here.
Those of the second size travel over gRPC if it is on another one. The README has the measurement."""

EXCERPT = 200
"""How much of an answer that is not Triton's an error shows."""

BINARY = "binary_tensor_data"
"""The name of the protocol's extension for binary tensors over HTTP."""


class Inference:
    """One model on one server over one transport; `metadata` is set by `open`.

    `addresses` are the server's by protocol. Small tensors travel over HTTP if it is among them, else over gRPC.
    """

    metadata: Metadata

    def __init__(
        self, model: str, version: str, url: str, transport: Any, *, rows_may_differ: bool, **secured: Any
    ) -> None:
        """Raises `TransportError`, `AddressError` and `InvalidInputError`."""
        self.transport = checked_transport(transport, url, model)
        self._model, self._version, self._url = sendable(model, "the model's name"), sendable(version, "version"), url
        custom = self.transport == "custom"
        self.addresses: dict[str, Address] = {} if custom else addresses(url, self.transport, **secured)
        self._rows_may_differ = rows_may_differ
        self._shared: SharedMemory | None = None
        self._formats: dict[str, Any] = {}
        self._transport = transport
        protocol = next(iter(self.addresses), "custom")
        self._usual = self._format(protocol)
        self._asks_for_end = "grpc" in self.addresses

    def open(self, timeout_s: float | None) -> Steps[Metadata]:
        """Read the model's configuration; with "shared_memory", register a region.

        Raises `ServerUnreachableError`, `NotReadyError`, and `TransportError` if shared memory was asked for by name
        and does not work.
        """
        options = CallOptions(timeout_s=timeout_s)
        if self._usual.protocol == "grpc":
            yield from self._look(options)
        try:
            config = yield self._usual.configuration(options)._replace(deadline=deadline_after(timeout_s))
        except (NotReadyError, ServerFailureError) as error:
            if self._usual.protocol == "custom":
                raise
            config = yield from self._describe(options, error)
        try:
            self.metadata = Metadata.of(config, rows_may_differ=self._rows_may_differ)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise not_tritons(what, repr(config)[:EXCERPT].encode(), self._url, self._model) from error
        if self.transport in ("auto", "shared_memory") and all(address.host for address in self.addresses.values()):
            from ._shared_memory import SharedMemory

            self._shared = SharedMemory(self.metadata, self._usual)
        if self.transport == "shared_memory":
            tensors = (*self.metadata.inputs, *self.metadata.outputs)
            yield from self._memory().prepare(max(1, sum(tensor.row_bytes or 0 for tensor in tensors)))
            self._memory()
        return self.metadata

    def check(self, arrays: Any, options: CallOptions, *, streams: bool = False) -> Inputs:
        """The arrays of a call as inputs; raises `InvalidInputError` for what does not fit the model."""
        if self.metadata.sequences and options.parameters and "sequence_id" in options.parameters:
            self.metadata.check_sequence_id(options.parameters["sequence_id"])
        return self.metadata.check(arrays, streams=streams)

    def check_one_server(self) -> None:
        """Raise `InvalidInputError` if the calls go to several servers, of which each has states of its own."""
        if any(not address.host for address in self.addresses.values()):
            raise InvalidInputError(
                f"{self._url}: the requests of a sequence go to one server. Give one address, or a front door."
            )

    def step(self, inputs: Inputs, options: CallOptions) -> Step | None:
        """The step that runs the model with its tensors in the message; None if `share` is to run it."""
        if self._shared and self._is_large(inputs):
            return None
        deadline = None if options.timeout_s is None else deadline_after(options.timeout_s)
        return self._message(self._usual, inputs, options, deadline)

    def share(self, inputs: Inputs, options: CallOptions) -> Steps[dict[str, Array]]:
        """The outputs by name, through shared memory if that works; raises a `ClientError`."""
        deadline = deadline_after(options.timeout_s)
        outputs = (yield from self._shared.infer(inputs, options, deadline)) if self._shared else None
        if outputs is not None:
            return outputs
        if self.transport == "shared_memory":
            self._memory()
        over_grpc = "grpc" in self.addresses and self._bytes(inputs) >= GRPC_BYTES
        chosen = self._format("grpc") if over_grpc else self._usual
        answer: dict[str, Array] = yield self._message(chosen, inputs, options, deadline)
        return answer

    def _message(self, chosen: Any, inputs: Inputs, options: CallOptions, deadline: float | None) -> Step:
        longest_s = self.metadata.longest_server_deadline_s
        return chosen.infer(inputs, options, deadline, longest_s)  # type: ignore[no-any-return]

    def stream(self, inputs: Inputs, options: CallOptions) -> Steps[Step]:
        """The step for a stream of answers, whose tensors travel in messages; raises `TransportError` without gRPC."""
        if "grpc" not in self.addresses:
            raise TransportError(
                f"{self._url}: '{self._model}' gives a stream of answers over gRPC only. Give the address of the gRPC "
                "port.",
                model=self._model,
                url=self._url,
            )
        if self._asks_for_end and self._usual.protocol != "grpc":
            yield from self._look(options, self._format("grpc"))
        self._asks_for_end = False
        deadline, longest_s = deadline_after(options.timeout_s), self.metadata.longest_server_deadline_s
        return self._format("grpc").stream(inputs, options, deadline, longest_s)  # type: ignore[no-any-return]

    def close(self) -> Steps[None]:
        """Unregister the shared memory."""
        if self._shared:
            yield from self._shared.close()

    def _look(self, options: CallOptions, chosen: Any = None) -> Steps[None]:
        """Ask for the server's version, which the connection reads, to know what the server survives."""
        with contextlib.suppress(AccessError, InvalidInputError, ServerFailureError):  # some servers do not tell it
            yield (chosen or self._usual).server(options)._replace(deadline=deadline_after(options.timeout_s))

    def _describe(self, options: CallOptions, error: ClientError) -> Steps[Mapping[str, Any]]:
        """The inputs and outputs as any server of KServe v2 tells them; raises `error` for an unknown model."""
        try:
            described = yield self._usual.metadata(options)._replace(deadline=deadline_after(options.timeout_s))
        except RequestFailedError:
            raise error from None
        if self._usual.protocol == "http":
            server = yield self._usual.server(options)._replace(deadline=deadline_after(options.timeout_s))
            extensions = server.get("extensions") if isinstance(server, Mapping) else None
            self._usual.is_binary = isinstance(extensions, list) and BINARY in extensions
        return described  # type: ignore[no-any-return]

    def _format(self, protocol: str) -> Any:
        """The format of a protocol; that of gRPC is imported when it is used, because that is slow."""
        if (known := self._formats.get(protocol)) is None:
            if protocol == "http":
                from ._http_format import HttpFormat

                known = HttpFormat(self.addresses["http"], self._model, self._version)
            elif protocol == "grpc":
                from ._grpc_format import GrpcFormat

                known = GrpcFormat(self._url, self._model, self._version)
            else:
                from .transport import CustomFormat

                known = CustomFormat(self._transport, self._url, self._model)
            self._formats[protocol] = known
        return known

    def _memory(self) -> "SharedMemory":
        """The shared memory; raises `TransportError` if it does not work."""
        if self._shared and self._shared.works:
            return self._shared
        said = f" It said: {self._shared.refusal}" if self._shared and self._shared.refusal else ""
        raise TransportError(
            f"{self._url}: the server cannot open this machine's shared memory: it runs on another host, in a "
            "container with its own /dev/shm, as another user, or allows it only with a secret (headers=) or, from "
            f'release 26.04 on, with --allow-client-shm=true. Use transport="auto".{said}',
            model=self._model,
            url=self._url,
        )

    def _is_large(self, inputs: Inputs) -> bool:
        return self.transport == "shared_memory" or self._bytes(inputs) >= LARGE_BYTES

    def _bytes(self, inputs: Inputs) -> int:
        """The bytes of the tensors of a request and its answer, as far as the configuration tells."""
        out = inputs.shape.rows * sum(tensor.row_bytes or 0 for tensor in self.metadata.outputs)
        return out + sum(map(size, inputs.arrays.values()))
