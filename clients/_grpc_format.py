"""The bytes of a call over gRPC and of its answer, without the library that sends them.

A request is concatenated from parts: protobuf merges the fields of messages that follow each other. So the head, with
names, shapes and datatypes, is encoded once per shape, and the bytes of a tensor are copied once.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from ._contract import MOST_SHAPES, Inputs
from ._http_format import Described, Place, Places
from ._options import CallOptions
from ._steps import INFER, STREAM, Step
from ._tensors import DATATYPES, DTYPES, Array, contents, tensor
from .errors import ClientError, ServerFailureError, explained, not_tritons, status_of

FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
"""The protocol's field for a parameter of each type."""

_FINAL = "triton_final_response"

# The parameter that asks for an end without outputs, if the last answer was not known to be the last.
_ASKS_FOR_END = {"triton_enable_empty_final_response": True}

# The fields raw_input_contents and raw_output_contents, of wire type 2: the bytes follow their length.
_RAW, _RAW_OUTPUT = bytes([7 << 3 | 2]), bytes([6 << 3 | 2])

EXCERPT = 100
"""How many bytes of an answer that is not Triton's an error shows."""


class Part(NamedTuple):
    """One answer of a stream: its outputs, None for an end without any, and whether it is the last one."""

    outputs: dict[str, Array] | None
    is_last: bool


class Likeness(NamedTuple):
    """How answers of one shape are alike: their bytes, those that are fixed by their place, and where tensors begin."""

    size: int
    fixed: list[tuple[int, bytes]]
    tensors: list[tuple[str, tuple[int, ...], np.dtype[Any], int]]


class GrpcFormat:
    """Requests about one model to one server."""

    protocol = "grpc"

    def __init__(self, url: str, model: str, version: str) -> None:
        self._url, self._model, self._version = url, model, version
        self._known: Likeness | None = None

    def server(self, options: CallOptions) -> Step:
        """The step that asks for the server's version."""
        return self._ask("ServerMetadata", pb.ServerMetadataRequest(), lambda said: {"version": said.version}, options)

    def configuration(self, options: CallOptions) -> Step:
        """The step that asks Triton for the model's configuration."""
        request = pb.ModelConfigRequest(name=self._model, version=self._version)
        return self._ask("ModelConfig", request, lambda said: _as_json(said.config), options)

    def metadata(self, options: CallOptions) -> Step:
        """The step that asks any server of KServe v2 for the model's inputs and outputs."""
        request = pb.ModelMetadataRequest(name=self._model, version=self._version)
        return self._ask("ModelMetadata", request, _as_json, options)

    def infer(self, inputs: Inputs, options: CallOptions, deadline: float | None, longest_s: float) -> Step:
        """The step that runs the model, with the tensors in the message."""
        arrays, shape = inputs
        head = shape.head
        if type(head) is not bytes:
            head = shape.head = self._head(arrays)
        if not options.adds_nothing(longest_s):
            head += encoded(options, longest_s)
        return Step("grpc", INFER, head, self._outputs, list(map(contents, arrays.values())), deadline, options, arrays)

    def infer_in_place(
        self, inputs: Inputs, places: Places, options: CallOptions, deadline: float | None, longest_s: float
    ) -> Step:
        """The step that runs the model on tensors in shared memory; its answer has a `Described` for each output."""
        request = pb.ModelInferRequest(model_name=self._model, model_version=self._version)
        for name, array in inputs.arrays.items():
            described = request.inputs.add(name=name, datatype=DATATYPES[array.dtype], shape=array.shape)
            _refer(described, places.inputs[name])
        for name, place in places.outputs.items():
            wanted = request.outputs.add(name=name)
            if place:
                _refer(wanted, place)
        head = request.SerializeToString() + encoded(options, longest_s)
        return Step("grpc", INFER, head, self._places, (), deadline, options, inputs.arrays)

    def stream(self, inputs: Inputs, options: CallOptions, deadline: float | None, longest_s: float) -> Step:
        """The step that runs the model for any number of answers, each of which is read as a `Part`."""
        step = self.infer(inputs, options, deadline, longest_s)
        return step._replace(
            method=STREAM, head=step.head + encoded(CallOptions(parameters=_ASKS_FOR_END), 0), read=self._part
        )

    def register(self, name: str, file: str, size: int, options: CallOptions, deadline: float | None) -> Step:
        """The step that lets the server map a file of /dev/shm."""
        request = pb.SystemSharedMemoryRegisterRequest(name=name, key=f"/{file}", byte_size=size)
        return self._ask("SystemSharedMemoryRegister", request, _nothing, options, deadline)

    def unregister(self, name: str, options: CallOptions, deadline: float | None) -> Step:
        """The step that lets the server forget a region."""
        request = pb.SystemSharedMemoryUnregisterRequest(name=name)
        return self._ask("SystemSharedMemoryUnregister", request, _nothing, options, deadline)

    def registered(self, options: CallOptions, deadline: float | None) -> Step:
        """The step that asks for the names of all regions."""
        request = pb.SystemSharedMemoryStatusRequest()
        return self._ask("SystemSharedMemoryStatus", request, lambda said: list(said.regions), options, deadline)

    def _ask(
        self,
        method: str,
        request: Any,
        read: Callable[[Any], Any],
        options: CallOptions,
        deadline: float | None = None,
    ) -> Step:
        answer = getattr(pb, f"{method}Response")
        whole = functools.partial(self._read, answer, read)
        return Step("grpc", method, request.SerializeToString(), whole, deadline=deadline, options=options)

    def _head(self, arrays: Mapping[str, Array]) -> bytes:
        request = pb.ModelInferRequest(model_name=self._model, model_version=self._version)
        for name, array in arrays.items():
            request.inputs.add(name=name, datatype=DATATYPES[array.dtype], shape=array.shape)
        return bytes(request.SerializeToString())

    def _read(self, message: Any, read: Callable[[Any], Any], content: bytes) -> Any:
        """What `read` makes of an answer; raises `ServerFailureError` for what Triton does not send."""
        try:
            return read(message.FromString(content))
        except ClientError:
            raise
        except Exception as error:  # protobuf raises errors of its own
            what = f"{type(error).__name__}: {error}"
            raise not_tritons(what, bytes(content[:EXCERPT]), self._url, self._model) from error

    def _outputs(self, content: bytes) -> dict[str, Array]:
        """The outputs by name; an answer that differs from the last one in its tensors only need not be parsed."""
        known = self._known
        if known and len(content) == known.size and all(content.startswith(part, at) for at, part in known.fixed):
            return {name: np.ndarray(shape, dtype, content, at).copy() for name, shape, dtype, at in known.tensors}

        def read(response: Any) -> dict[str, Array]:
            outputs = _arrays(response)
            self._known = _likeness(content, response, outputs)
            return outputs

        return self._read(pb.ModelInferResponse, read, content)  # type: ignore[no-any-return]

    def _places(self, content: bytes) -> dict[str, Described]:
        return self._read(pb.ModelInferResponse, _places, content)  # type: ignore[no-any-return]

    def _part(self, content: bytes) -> Part:
        return self._read(pb.ModelStreamInferResponse, self._part_of, content)  # type: ignore[no-any-return]

    def _part_of(self, message: Any) -> Part:
        if text := message.error_message:  # the server tells no status here
            raise explained(status_of(text), text, self._url, self._model)
        response = message.infer_response
        is_last = response.parameters[_FINAL].bool_param if _FINAL in response.parameters else False
        return Part(None if is_last and not response.outputs else _arrays(response), is_last)


def whole(step: Step) -> bytes:
    """A whole request: the head, and its tensors after it."""
    if not step.tensors:
        return step.head
    parts: list[bytes | memoryview] = [step.head]
    for each in step.tensors:
        parts += (_RAW + _varint(len(each)), each)
    return b"".join(parts)


def encoded(options: CallOptions, longest_s: float) -> bytes:
    """The bytes that the options of a call add to its request."""
    request = pb.ModelInferRequest(id=options.request_id)
    if options.priority:
        request.parameters["priority"].uint64_param = int(options.priority)
    if options.timeout_s and (limit_us := options.server_timeout_us(longest_s)):
        request.parameters["timeout"].int64_param = limit_us
    for name, value in (options.parameters or {}).items():
        setattr(request.parameters[name], FIELDS[type(value)], value)
    return bytes(request.SerializeToString())


@functools.lru_cache(MOST_SHAPES)
def _varint(value: int) -> bytes:
    """A length as protobuf encodes it: 7 bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _refer(described: Any, place: Place) -> None:
    """Name the place of a tensor in shared memory."""
    region, offset, size = place
    described.parameters["shared_memory_region"].string_param = region
    described.parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        described.parameters["shared_memory_offset"].int64_param = offset


def _as_json(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _nothing(_: Any) -> None:
    """An answer that says nothing."""


def _described(response: Any) -> Iterable[tuple[Any, Any]]:
    """The outputs of an answer with their tensors; raises `ServerFailureError` if there are not as many of both."""
    raws = response.raw_output_contents
    if len(raws) != len(response.outputs):
        raise ServerFailureError(f"an answer named {len(response.outputs)} outputs and brought {len(raws)} tensors.")
    if len({output.name for output in response.outputs}) < len(raws):
        raise ServerFailureError("an answer named one output twice.")
    return zip(response.outputs, raws, strict=True)


def _arrays(response: Any) -> dict[str, Array]:
    """The outputs of a ModelInferResponse by name, in the server's order."""
    outputs = dict[str, Array]()
    for output, raw in _described(response):
        shape = tuple(output.shape)
        dtype, size = _plain(output.datatype, shape)
        if dtype is not None and size == len(raw):
            outputs[output.name] = np.ndarray(shape, dtype, raw).copy()
        else:
            outputs[output.name] = tensor(raw, output.datatype, shape)
    return outputs


def _likeness(content: bytes, response: Any, outputs: Mapping[str, Array]) -> Likeness | None:
    """What answers like this one have in common; None for strings, and for fields in another order."""
    end, fixed = len(content), list[tuple[int, bytes]]()
    tensors: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
    for (name, array), raw in zip(list(outputs.items())[::-1], list(response.raw_output_contents)[::-1], strict=True):
        begin = end - len(raw)
        tag = _RAW_OUTPUT + _varint(len(raw))
        if array.dtype.hasobject or not content.startswith(raw, begin) or not content.endswith(tag, 0, begin):
            return None
        tensors.append((name, array.shape, array.dtype, begin))
        end = begin - len(tag)
        fixed.append((end, tag))
    return Likeness(len(content), [(0, content[:end]), *fixed], tensors)


def _places(response: Any) -> dict[str, Described]:
    """The outputs of an answer of which the server has written some to shared memory."""
    return {
        output.name: (output.datatype, tuple(output.shape), memoryview(raw)) for output, raw in _described(response)
    }


@functools.lru_cache(MOST_SHAPES)
def _plain(kind: str, shape: tuple[int, ...]) -> tuple[np.dtype[Any] | None, int]:
    """The dtype and the bytes of a tensor; None for strings and for what does not exist."""
    dtype = DTYPES.get(kind)
    if dtype is None or dtype.hasobject or min(shape, default=0) < 0:
        return None, 0
    return dtype, math.prod(shape) * dtype.itemsize
