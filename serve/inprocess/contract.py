"""Reads the requests of a model, checked as the server checks them and refused with its words, and writes answers."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from clients import wire
from clients.errors import ClientError
from serve.inprocess.request import Head, Refused, Request
from serve.inprocess.utilities import InferenceResponse, Tensor

HEADS = 256
"""How many parsed heads a model keeps before it drops all of them."""
# Parameters that Triton reads itself, so that a model does not see them.
OWN_PARAMETERS = ("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output")
BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class Contract:
    """Reads the requests of one model, and writes its answers.

    `copies` is for models of others: they may write into their inputs, and use the memory of their outputs again.
    """

    def __init__(self, config: ModelConfig, version: int, *, copies: bool) -> None:
        self._name, self._version, self._copies = config.name, str(version), copies
        self._most = config.max_batch_size
        self._inputs = {tensor.name: tensor for tensor in config.input}
        self._outputs = {tensor.name: tensor for tensor in config.output}
        self._required = [tensor.name for tensor in config.input if not tensor.optional]
        self._shaped = frozenset(
            tensor.name for tensor in config.input if -1 in tensor.dims and not tensor.allow_ragged_batch
        )
        self._heads: dict[bytes, Head] = {}

    def request(
        self, message: bytes, contents: Sequence[memoryview], wake: Callable[[Sequence[Request]], None]
    ) -> Request:
        """The request of a head and its tensors, which are not copied; raises `Refused`."""
        head = self._heads.get(message)
        if head is None:
            parsed = service_pb2.ModelInferRequest.FromString(message)
            if parsed.raw_input_contents:
                contents = [memoryview(content) for content in parsed.raw_input_contents]
            head = self._head(parsed)
            if not parsed.raw_input_contents:
                if len(self._heads) >= HEADS:
                    self._heads.clear()
                self._heads[message] = head
        if len(contents) < len(head.names):
            text = f"expected {len(head.names)} tensors after the message but got {len(contents)}"
            raise Refused("INVALID_ARGUMENT", head.marked(text))
        tensors = [
            self._tensor(head, name, kind, shape, content)
            for name, kind, shape, content in zip(head.names, head.kinds, head.shapes, contents, strict=False)
        ]
        return Request(head, tensors, wake, copies=self._copies)

    def _head(self, parsed: Any) -> Head:
        def refused(text: str) -> Refused:
            return Refused("INVALID_ARGUMENT", f"[request id: {parsed.id or '<id_unknown>'}] {text}")

        shapes = {tensor.name: tuple(tensor.shape) for tensor in parsed.inputs}
        tensors = {tensor.name: tensor for tensor in parsed.inputs}
        for output in parsed.outputs:
            if output.name not in self._outputs:
                text = f"unexpected inference output '{output.name}' for model '{self._name}'"
                raise Refused("INVALID_ARGUMENT", text)
        checked = dict(reversed(shapes.items()))  # the server's hash map gives the last one first
        self._check_names(checked, refused)
        rows = self._rows(checked, refused)
        for name, shape in checked.items():
            self._check(tensors[name], shape, refused)
        first = 1 if self._most else 0
        own = {name: _value(value) for name, value in parsed.parameters.items()}
        for name in ("priority", "timeout"):
            if type(own.setdefault(name, 0)) is not int:
                raise refused(f"invalid value for parameter '{name}': expected a whole number")
        key = tuple((name, shape[first:]) for name, shape in sorted(shapes.items()) if name in self._shaped)
        return Head(
            id=parsed.id,
            names=tuple(shapes),
            kinds=tuple(tensor.datatype for tensor in parsed.inputs),
            shapes=tuple(self._seen(name, shape) for name, shape in shapes.items()),
            rows=max(1, rows),
            key=key if len(self._required) == len(self._inputs) else (key, frozenset(shapes)),
            priority=own["priority"],
            timeout_us=own["timeout"],
            parameters=json.dumps({name: value for name, value in own.items() if name not in OWN_PARAMETERS}),
            outputs=frozenset(output.name for output in parsed.outputs) or frozenset(self._outputs),
        )

    def _check_names(self, shapes: Mapping[str, Any], refused: Callable[[str], Refused]) -> None:
        most, least = len(self._inputs), len(self._required)
        if not least <= len(shapes) <= most:
            expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
            missing = [name for name in self._required if name not in shapes]
            raise refused(
                f"expected {expected} but got {len(shapes)} inputs for model '{self._name}'. Got input(s) "
                f"{_names(shapes)}, but missing required input(s) {_names(missing) if missing else ']'}. Please "
                "provide all required input(s)."
            )

    def _rows(self, shapes: Mapping[str, tuple[int, ...]], refused: Callable[[str], Refused]) -> int:
        rows = 0
        for name, shape in shapes.items():
            self._input(name)
            if not self._most:
                continue
            if not shape:
                raise refused(f"input '{name}' has no shape but model requires batch dimension for '{self._name}'")
            if rows and shape[0] != rows:
                raise refused(f"input '{name}' batch size does not match other inputs for '{self._name}'")
            rows = shape[0]
        if rows > self._most:
            raise refused(f"inference request batch-size must be <= {self._most} for '{self._name}'")
        return rows

    def _check(self, tensor: Any, shape: tuple[int, ...], refused: Callable[[str], Refused]) -> None:
        declared = self._input(tensor.name)
        kind = DataType.Name(declared.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        if tensor.datatype != kind:
            raise refused(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{self._name}' expects "
                f"'{kind}'"
            )
        dims, own = list(declared.dims), shape[1:] if self._most else shape
        if len(dims) != len(own) or any(dim not in (-1, size) for dim, size in zip(dims, own, strict=True)):
            expected = [-1, *dims] if self._most else dims
            raise refused(
                f"unexpected shape for input '{tensor.name}' for model '{self._name}'. Expected {_shape(expected)}, "
                f"got {_shape(shape)}. {BATCH_NOTE if self._most else ''}"
            )

    def _input(self, name: str) -> Any:
        if name not in self._inputs:
            raise Refused("INVALID_ARGUMENT", f"unexpected inference input '{name}' for model '{self._name}'")
        return self._inputs[name]

    def _seen(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the model sees: that of `reshape` if the input has one."""
        declared = self._inputs[name]
        return self._reshaped(shape, declared.dims, declared.reshape.shape) if declared.HasField("reshape") else shape

    def _reshaped(self, shape: tuple[int, ...], dims: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
        """A shape that has `dims` as one that has `to`; the sizes of open dimensions keep their order."""
        first = 1 if self._most else 0
        open_sizes = iter([size for dim, size in zip(dims, shape[first:], strict=True) if dim == -1])
        return (*shape[:first], *(next(open_sizes) if dim == -1 else dim for dim in to))

    def _tensor(self, head: Head, name: str, kind: str, shape: tuple[int, ...], content: memoryview) -> Tensor:
        if kind == "BYTES":
            try:
                return Tensor(name, wire.tensor(content, kind, shape, whole=True))
            except ClientError as error:
                raise Refused("INVALID_ARGUMENT", head.marked(f"input '{name}': {error}")) from error
        dtype = wire.DTYPES[kind]
        size = math.prod(shape) * dtype.itemsize
        if content.nbytes != size:
            raise Refused(
                "INVALID_ARGUMENT",
                head.marked(
                    f"input byte size mismatch for input '{name}' for model '{self._name}'. Expected {size}, got "
                    f"{content.nbytes}"
                ),
            )
        is_bf16 = kind == "BF16"
        array: NDArray[Any] = np.ndarray(shape, np.uint16 if is_bf16 else dtype, content)
        if self._copies or is_bf16:  # DLPack, the only way to BF16, takes no array that is read-only
            return Tensor(name, array.copy(), is_bf16)
        array.flags.writeable = False
        return Tensor(name, array)

    def answer(self, response: InferenceResponse, head: Head) -> Any:
        """The message of an answer without an error; raises `Refused` for tensors that have no place in one."""
        try:
            return self._answer(response, head)
        except (KeyError, ValueError, StopIteration) as error:
            text = f"'{self._name}' answered with a tensor of another type or shape than it declares ({error!r})"
            raise Refused("INTERNAL", text) from error

    def _answer(self, response: InferenceResponse, head: Head) -> Any:
        message = service_pb2.ModelInferResponse(model_name=self._name, model_version=self._version, id=head.id)
        for tensor in response.output_tensors():
            if tensor.name() not in head.outputs:
                continue
            array, declared = tensor.array(), self._outputs[tensor.name()]
            if array.dtype.kind in "SU":
                array = array.astype(np.object_)
            shape: Sequence[int] = array.shape
            if declared.HasField("reshape"):
                shape = self._reshaped(array.shape, declared.reshape.shape, declared.dims)
            kind = "BF16" if tensor.is_bf16 else wire.datatype(array)
            message.outputs.add(name=tensor.name(), datatype=kind, shape=shape)
            message.raw_output_contents.append(bytes(wire.contents(array)))
        return message


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def _names(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _shape(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
