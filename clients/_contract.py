"""The contract of a model: its inputs and outputs, and the check of arrays and answers against them."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from ._tensors import DTYPES, Array
from .errors import InvalidInputError, ServerFailureError

MOST_SHAPES = 256
"""How many shapes of requests a client remembers before it forgets all of them."""

_SIGNATURE = operator.attrgetter("__class__", "dtype", "shape")
"""What decides whether a numpy array without strings fits an input, and how it is described."""

_NOT_NUMBERS = "OSUMm"
"""The kinds of numpy's dtypes whose memory is not what is sent: objects, texts and times."""


LONGEST_ID = 8
"""The most bytes of a text as the id of a sequence, for a model that takes numbers: a longer one ends the server."""


class Shape:
    """What all requests with arrays of the same dtypes and shapes share: `rows`, and `head`, how such a request begins.

    `is_known` is whether others like it will come; a request with strings has a shape of its own.
    """

    __slots__ = ("head", "is_known", "rows")

    def __init__(self, rows: int, *, is_known: bool) -> None:
        self.rows, self.is_known = rows, is_known
        self.head: Any = None


class Inputs(NamedTuple):
    """Checked arrays by the names of their inputs."""

    arrays: dict[str, Array]
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input or output: its name, numpy dtype and shape; -1 in the shape means any length.

    `datatype` is the protocol's name of the dtype. Strings are "BYTES", in arrays of objects (`bytes` or `str`).
    """

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    batched: bool = True

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row, or of the whole tensor without a batch axis; None if the size depends on the data."""
        dims = self.shape[1:] if self.batched else self.shape
        if -1 in dims or self.dtype.hasobject:
            return None
        return math.prod(dims) * self.dtype.itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is one that this allows."""
        if len(shape) != len(self.shape):
            return False
        for wanted, actual in zip(self.shape, shape, strict=True):  # noqa: SIM110 (each call comes here)
            if wanted not in (-1, actual):
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A model's inputs and outputs in the order of its configuration; shapes begin with the batch axis if there is one.

    `max_batch_size` is in rows, 0 for a model without a batch axis. `instances` is 0 if the configuration names none,
    as for an ensemble. `longest_server_deadline_s` is the longest deadline that is written into a request, 0 if
    none is. `sequences` is whether the requests of a sequence belong together (sequence_batching), `decoupled` whether
    a request may have any number of answers. `sequence_ids` is the type of a sequence's id that the model takes, "" for
    any. `rows_may_differ` is whether an answer may have another number of rows than its request.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    instances: int = 0
    longest_server_deadline_s: float = 0.0
    sequences: bool = False
    decoupled: bool = False
    sequence_ids: str = ""
    rows_may_differ: bool = False
    _shapes: dict[object, Shape] = field(default_factory=dict, init=False, repr=False, compare=False)
    _names: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", tuple(tensor.name for tensor in self.inputs))

    @classmethod
    def of(cls, config: Mapping[str, Any], *, rows_may_differ: bool = False) -> Self:
        """Read a model's configuration as Triton's JSON has it, or its metadata as any server of KServe v2 gives it.

        Raises `InvalidInputError` for a datatype that numpy has no dtype for.
        """
        rows = int(config.get("max_batch_size", 0))
        batch, name = (-1,) if rows else (), str(config["name"])
        groups = [
            (int(group.get("count", 1)), len(group.get("gpus", ()))) for group in config.get("instance_group", ())
        ]
        sequences = config.get("sequence_batching")
        return cls(
            name=name,
            inputs=tuple(_tensor(name, each, batch) for each in config.get("input", config.get("inputs", ()))),
            outputs=tuple(_tensor(name, each, batch) for each in config.get("output", config.get("outputs", ()))),
            max_batch_size=rows,
            instances=sum(count * max(1, gpus) for count, gpus in groups),
            longest_server_deadline_s=_longest_server_deadline_s(config),
            sequences=sequences is not None,
            decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
            sequence_ids=_sequence_ids(sequences or {}),
            rows_may_differ=rows_may_differ,
        )

    def check(self, arrays: Sequence[Any], *, streams: bool = False) -> Inputs:
        """The arrays as inputs; raises `InvalidInputError` for what does not fit.

        `arrays` is one per input in the configuration's order, or one mapping from names to arrays, in which optional
        inputs may be missing. If `max_batch_size` is not 0, each has the batch axis first, with the same number of
        rows, 1 to `max_batch_size`. `streams` is whether the caller takes any number of answers.
        """
        if self.decoupled and not streams:
            raise InvalidInputError(
                f"'{self.name}' is decoupled: it may give any number of answers to one request. Take them with "
                "stream(...) over gRPC: for part in model.stream(...)."
            )
        try:
            signature = tuple(map(_SIGNATURE, arrays))
            shape = self._shapes.get(signature)
        except Exception:  # anything may be passed; the check says what is wrong with it
            signature, shape = (), None
        if shape:  # others like them have passed
            return Inputs(dict(zip(self._names, arrays, strict=True)), shape)
        by_name = self._by_name(arrays)
        present = [tensor for tensor in self.inputs if tensor.name in by_name]
        checked = {tensor.name: self._fit(tensor, by_name[tensor.name]) for tensor in present}
        rows = self._rows(checked) if self.max_batch_size else 1
        is_known = all(map(operator.is_, checked.values(), arrays)) and not any(map(_is_not_numbers, arrays))
        shape = Shape(rows, is_known=is_known)
        if is_known:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            self._shapes[signature] = shape
        return Inputs(checked, shape)

    def check_sequence_id(self, sequence_id: object) -> None:
        """Raise `InvalidInputError` for an id of a sequence that the server or the model does not take."""
        if not isinstance(sequence_id, int | str) or type(sequence_id) is bool or sequence_id in (0, ""):
            raise InvalidInputError(
                f"sequence_id is {str(sequence_id)[:80]!r}. Give an int that is not 0 or a str that is not empty, and "
                "one that no other client uses."
            )
        takes_numbers = self.sequence_ids not in ("", "STRING")
        if takes_numbers and isinstance(sequence_id, str) and len(sequence_id.encode(errors="replace")) > LONGEST_ID:
            raise InvalidInputError(
                f"sequence_id is {sequence_id[:80]!r}, and '{self.name}' takes ids of {self.sequence_ids}: a text of "
                f"more than {LONGEST_ID} bytes would end the server. Give an int."
            )

    def answer(self, outputs: Mapping[str, Array], rows: int | None) -> Any:
        """The outputs in the configuration's order: one as it is, several as a tuple.

        Raises `ServerFailureError` if one is missing, is not declared, or has another dtype, shape or number of rows
        than the contract says. `rows` is that of the request, None for any.
        """
        if len(outputs) != len(self.outputs):
            self._miscounted(outputs)
        arrays = []
        for tensor in self.outputs:
            array = outputs.get(tensor.name)
            if array is None:
                self._miscounted(outputs)
            elif array.dtype != tensor.dtype or not tensor.fits(array.shape):
                self._differs(tensor, array, f"{tensor.datatype} of shape {list(tensor.shape)}")
            elif rows is not None and self.max_batch_size and len(array) != rows and not self.rows_may_differ:
                self._differs(tensor, array, f"{rows} rows, as the request. Give rows_may_differ=True if it means that")
            arrays.append(array)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _miscounted(self, outputs: Mapping[str, Array]) -> None:
        declared = [tensor.name for tensor in self.outputs]
        missing, more = [name for name in declared if name not in outputs], [n for n in outputs if n not in declared]
        raise ServerFailureError(
            f"'{self.name}' answered "
            + (f"without {missing}, which its configuration declares as output" if missing else f"with {more} as well")
            + ": a fault of the model, or the answer is another's. Let the model set each declared output once."
        )

    def _differs(self, tensor: Tensor, array: Array, wanted: str) -> None:
        raise ServerFailureError(
            f"'{self.name}': output \"{tensor.name}\" came as {array.dtype} of shape {list(array.shape)}, and the "
            f"contract says {wanted}. The answer is not used: look at the model, and at what is in between."
        )

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
        if not tensor.fits(array.shape):
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" has shape {list(tensor.shape)}, got {list(array.shape)}."
                + self._hint(tensor, array.shape)
            )
        return array

    def _array(self, tensor: Tensor, value: Any) -> Array:
        try:
            return np.asarray(value)
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

    def _rows(self, arrays: Mapping[str, Array]) -> int:
        """How many rows the arrays have."""
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
        return count


def _longest_server_deadline_s(config: Mapping[str, Any]) -> float:
    """slo_ms for `batch_policy: deadline`, without limit for `allow_timeout_override`, otherwise 0.

    A batch policy takes the requests before Triton's queue policy could act on them, and a deadline longer than slo_ms
    would replace that.
    """
    parameters = {name: value.get("string_value", "") for name, value in config.get("parameters", {}).items()}
    if parameters.get("batch_policy") == "deadline":
        try:
            return float(parameters.get("slo_ms", "")) / 1e3
        except ValueError:
            return 0.0
    batching = config.get("dynamic_batching", {})
    policies = [batching.get("default_queue_policy", {}), *batching.get("priority_queue_policy", {}).values()]
    return math.inf if any(policy.get("allow_timeout_override") for policy in policies) else 0.0


def _sequence_ids(sequences: Mapping[str, Any]) -> str:
    """The datatype of the control with a sequence's id; "" if the model does not ask for it."""
    for tensor in sequences.get("control_input", ()):
        for control in tensor.get("control", ()):
            if control.get("kind") == "CONTROL_SEQUENCE_CORRID":
                return str(control.get("data_type", "")).removeprefix("TYPE_")
    return ""


def _tensor(model: str, tensor: Mapping[str, Any], batch: tuple[int, ...]) -> Tensor:
    """One input or output of a configuration, or of the metadata of KServe v2."""
    kind = str(tensor.get("data_type", tensor.get("datatype")))
    datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
    if datatype not in DTYPES:
        raise InvalidInputError(
            f"'{model}': \"{tensor['name']}\" has the datatype {kind}, which this client has no dtype for.",
            model=model,
        )
    return Tensor(
        name=str(tensor["name"]),
        datatype=datatype,
        dtype=DTYPES[datatype],
        shape=(*batch, *map(int, tensor.get("dims", tensor.get("shape", ())))),
        optional=bool(tensor.get("optional")),
        ragged=bool(tensor.get("allow_ragged_batch")),
        batched=bool(batch),
    )


def _is_not_numbers(array: Any) -> bool:
    """Whether the dtype and shape of an array do not say which bytes are sent."""
    return type(array) is not np.ndarray or array.dtype.kind in _NOT_NUMBERS


def _name(dtype: np.dtype[Any]) -> str:
    """A dtype as it is written in a program."""
    kind = dtype.type
    return f"{kind.__module__}.{kind.__name__}"
