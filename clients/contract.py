"""The inputs and outputs of a model, and the check of arrays against them before anything is sent."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import protocol as pb
from .errors import InvalidInputError
from .wire import DTYPES, HEADS

Array = NDArray[Any]
SIGNATURE = operator.attrgetter("__class__", "dtype", "shape")
"""What decides whether a numpy array without strings fits an input, and how it is described."""

NOT_NUMBERS = "OSUMm"
"""The kinds of numpy's dtypes whose memory is not what is sent: objects, texts and times."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input or output: its name, numpy dtype and shape; -1 in the shape means any length.

    `datatype` is the protocol's name of the dtype. Strings are "BYTES", in arrays of objects (`bytes` or `str`).
    `scalar` is whether the model has one value for each row: Triton writes such a tensor [rows, 1], the client [rows].
    """

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    batched: bool = True
    scalar: bool = False

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row, or of the whole tensor without a batch axis; None if the size depends on the data."""
        dims = self.shape[1:] if self.batched else self.shape
        if -1 in dims or self.dtype.hasobject:
            return None
        return math.prod(dims) * self.dtype.itemsize

    def own_shape(self, array: Array) -> Array:
        """An output in the shape that the model's own graph gives it."""
        return array.reshape(-1) if self.scalar else array


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A model's inputs and outputs in the order of its configuration; shapes begin with the batch axis if there is one.

    `max_batch_size` is in rows, 0 for a model without a batch axis. `instances` is 0 if the configuration names none,
    as for an ensemble. `longest_server_deadline_s` is the longest deadline that is written into a request, 0 if
    none is. `sequences` is whether the requests of a sequence belong together (sequence_batching), `decoupled` whether
    a request may have any number of answers. `sequence_ids` is the type of a sequence's id that the model takes.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    instances: int
    longest_server_deadline_s: float
    sequences: bool
    decoupled: bool = False
    sequence_ids: str = "UINT64"
    _fitting: set[object] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, config: Any) -> Self:
        """Read a ModelConfig message; raises `InvalidInputError` for a datatype that numpy has no dtype for."""
        batch = (-1,) if config.max_batch_size > 0 else ()
        return cls(
            name=config.name,
            inputs=tuple(_tensor(config, tensor, batch) for tensor in config.input),
            outputs=tuple(_tensor(config, tensor, batch) for tensor in config.output),
            max_batch_size=config.max_batch_size,
            instances=sum(group.count * max(1, len(group.gpus)) for group in config.instance_group),
            longest_server_deadline_s=_longest_server_deadline_s(config),
            sequences=config.HasField("sequence_batching"),
            decoupled=config.model_transaction_policy.decoupled,
            sequence_ids=_sequence_ids(config),
        )

    def check(self, arrays: Sequence[Any], *, streams: bool = False) -> dict[str, Array]:
        """The arrays by the name of their input; raises `InvalidInputError` for what does not fit.

        `streams` is whether the caller takes any number of answers.

        `arrays` is one per input in the configuration's order, or one mapping from names to arrays, in which optional
        inputs may be missing. If `max_batch_size` is not 0, each has the batch axis first, with the same number of
        rows, 1 to `max_batch_size`.
        """
        if self.decoupled and not streams:
            raise InvalidInputError(
                f"'{self.name}' is decoupled: it may give any number of answers to one request. Take them with "
                "stream(...) over gRPC: for part in model.stream(...)."
            )
        signature = self.signature(arrays)
        if signature in self._fitting:  # others like them have passed
            return {tensor.name: array for tensor, array in zip(self.inputs, arrays, strict=True)}
        checked = self._checked(arrays)
        if signature is not None and all(map(operator.is_, checked.values(), arrays)):
            if len(self._fitting) >= HEADS:
                self._fitting.clear()
            self._fitting.add(signature)
        return checked

    def _checked(self, arrays: Sequence[Any]) -> dict[str, Array]:
        by_name = self._by_name(arrays)
        present = [tensor for tensor in self.inputs if tensor.name in by_name]
        checked = {tensor.name: self._fit(tensor, by_name[tensor.name]) for tensor in present}
        if self.max_batch_size:
            self._check_rows(checked)
        return checked

    def signature(self, arrays: Sequence[Any]) -> object:
        """The `SIGNATURE` of each array, if there is one of numpy for each input and all hold numbers; else None."""
        if len(arrays) != len(self.inputs):
            return None
        if any(type(array) is not np.ndarray or array.dtype.kind in NOT_NUMBERS for array in arrays):
            return None
        return tuple(map(SIGNATURE, arrays))

    def _by_name(self, arrays: Sequence[Any]) -> Mapping[str, Any]:
        wanted = [tensor.name for tensor in self.inputs]
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            by_name: Mapping[str, Any] = arrays[0]
            unknown = [name for name in by_name if name not in wanted]
            missing = [tensor.name for tensor in self.inputs if not tensor.optional and tensor.name not in by_name]
            if unknown or missing:
                problems = [f"unknown: {unknown}"] * bool(unknown) + [f"missing: {missing}"] * bool(missing)
                raise InvalidInputError(f"'{self.name}' has the inputs {wanted}; {', '.join(problems)}.")
            return by_name
        if len(arrays) != len(wanted):
            raise InvalidInputError(
                f"'{self.name}' has {len(wanted)} inputs, {wanted}, and got {len(arrays)} arrays. Pass one for each "
                "input in this order, or a mapping from names to arrays."
            )
        return dict(zip(wanted, arrays, strict=True))

    def _fit(self, tensor: Tensor, value: Any) -> Array:
        array = self._array(tensor, value)
        if tensor.datatype == "BYTES" and array.dtype.kind in "SU":
            array = array.astype(np.object_)
        if array.dtype != tensor.dtype:
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" is {tensor.datatype}, got {array.dtype}. "
                + (
                    "Pass bytes or str."
                    if tensor.dtype.hasobject
                    else f"Convert it: array.astype({_name(tensor.dtype)})."
                )
            )
        if tensor.dtype.hasobject:
            array = self._as_bytes(tensor, array)
        if len(array.shape) != len(tensor.shape) or any(
            length not in (-1, actual) for length, actual in zip(tensor.shape, array.shape, strict=True)
        ):
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" has shape {list(tensor.shape)}, got {list(array.shape)}."
                + self._hint(tensor, array.shape)
            )
        return array

    def _array(self, tensor: Tensor, value: Any) -> Array:
        try:
            array = np.asarray(value)
            return array[:, np.newaxis] if tensor.scalar and array.ndim == 1 else array
        except Exception as error:  # libraries raise many kinds of error here
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" is {type(value).__name__}, of which numpy makes no array "
                f"({error}). Pass a numpy array."
            ) from error

    def _as_bytes(self, tensor: Tensor, array: Array) -> Array:
        """The strings as bytes, str encoded as UTF-8."""
        if all(isinstance(element, bytes) for element in array.flat):
            return array
        encoded = np.empty(array.size, np.object_)
        for index, element in enumerate(array.flat):
            if not isinstance(element, bytes | str):
                raise InvalidInputError(
                    f"'{self.name}': input \"{tensor.name}\" holds a {type(element).__name__}. Pass bytes or str."
                )
            try:
                encoded[index] = element.encode() if isinstance(element, str) else element
            except UnicodeEncodeError as error:
                raise InvalidInputError(
                    f"'{self.name}': input \"{tensor.name}\" holds a str with {element[error.start]!r} at {error.start}"
                    ", half of a character, which UTF-8 cannot hold. Pass the bytes that you mean, or replace it: "
                    'text.encode(errors="replace").'
                ) from error
        return encoded.reshape(array.shape)

    def _hint(self, tensor: Tensor, shape: tuple[int, ...]) -> str:
        if self.max_batch_size and len(shape) == len(tensor.shape) - 1:
            return " The first axis is the batch axis: pass one row as array[None]."
        return " -1 means any length." if -1 in tensor.shape else ""

    def _check_rows(self, arrays: Mapping[str, Array]) -> None:
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            raise InvalidInputError(
                f"'{self.name}': the inputs of one request must have the same number of rows, got {rows}."
            )
        count = next(iter(rows.values()), 1)
        if not 1 <= count <= self.max_batch_size:
            raise InvalidInputError(
                f"'{self.name}': one request has 1 to {self.max_batch_size} rows (max_batch_size), got {count}. "
                + ("Split it into several requests." if count else "Pass at least one row.")
            )


def _longest_server_deadline_s(config: Any) -> float:
    """slo_ms for `batch_policy: deadline`, without limit for `allow_timeout_override`, otherwise 0.

    A batch policy takes the requests before Triton's queue policy could act on them, and a longer deadline than slo_ms
    would take its place.
    """
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    if parameters.get("batch_policy") == "deadline":
        try:
            return float(parameters.get("slo_ms", "")) / 1e3
        except ValueError:
            return 0.0
    batching = config.dynamic_batching
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    return math.inf if any(policy.allow_timeout_override for policy in policies) else 0.0


def _sequence_ids(config: Any) -> str:
    """The data type of the control with a sequence's id; UINT64 if the model does not ask for it."""
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            if control.kind == pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
                return str(pb.DataType.Name(control.data_type)).removeprefix("TYPE_")
    return "UINT64"


def _tensor(config: Any, tensor: Any, batch: tuple[int, ...]) -> Tensor:
    is_named = tensor.data_type in pb.DataType.values()
    kind = pb.DataType.Name(tensor.data_type) if is_named else f"datatype {tensor.data_type}"
    datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
    if datatype not in DTYPES:
        raise InvalidInputError(
            f"'{config.name}': \"{tensor.name}\" is {kind}, which this client has no dtype for.",
            model=config.name,
        )
    is_input = isinstance(tensor, pb.ModelInput)
    return Tensor(
        name=tensor.name,
        datatype=datatype,
        dtype=DTYPES[datatype],
        shape=(*batch, *tensor.dims),
        optional=is_input and tensor.optional,
        ragged=is_input and tensor.allow_ragged_batch,
        batched=bool(batch),
        scalar=bool(batch) and tensor.HasField("reshape") and not tensor.reshape.shape,
    )


def _name(dtype: np.dtype[Any]) -> str:
    """A dtype as it is written in a program."""
    kind = dtype.type
    return f"{kind.__module__}.{kind.__name__}"
