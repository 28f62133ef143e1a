"""What a model takes and gives, and the check of arrays against it before anything is sent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

from clients.device_memory import on_device
from clients.errors import InvalidInputError
from clients.wire import DTYPES

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One input or output: its name, numpy dtype and shape; -1 in the shape is any number.

    `datatype` is the protocol's name of the dtype; strings are "BYTES" and arrays of objects (`bytes` or `str`).
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


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A model's inputs and outputs in the order of its configuration; shapes have the batch axis where it batches.

    `max_batch_size` is in rows, 0 for a model without a batch axis. `instances` run at a time (0 where the config
    names none, as for an ensemble). `queue_timeout` is whether a request may bring its own time limit for the
    server's queue.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    instances: int
    queue_timeout: bool

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Read from what the server has loaded; raises `InvalidInputError` for a dtype that is not known."""
        batch = (-1,) if config.max_batch_size > 0 else ()
        policy = config.dynamic_batching.default_queue_policy
        policies = [policy, *config.dynamic_batching.priority_queue_policy.values()]
        return cls(
            name=config.name,
            inputs=tuple(_tensor(config, one, batch) for one in config.input),
            outputs=tuple(_tensor(config, one, batch) for one in config.output),
            max_batch_size=config.max_batch_size,
            instances=sum(group.count * max(1, len(group.gpus)) for group in config.instance_group),
            queue_timeout=any(one.allow_timeout_override for one in policies),
        )

    def check(self, arrays: Sequence[Any]) -> dict[str, Array]:
        """Arrays by the name of their input; raises `InvalidInputError` naming what does not fit.

        One array per input in the configuration's order, or one mapping from names to arrays, in which optional
        inputs may be missing. All have the batch axis first when `max_batch_size` is not 0, with 1 to
        `max_batch_size` rows, the same in all of them.
        """
        named = self._by_name(arrays)
        checked = {tensor.name: self._fit(tensor, named[tensor.name]) for tensor in self.inputs if tensor.name in named}
        if self.max_batch_size:
            self._check_rows(checked)
        return checked

    def _by_name(self, arrays: Sequence[Any]) -> Mapping[str, Any]:
        wanted = [tensor.name for tensor in self.inputs]
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            named: Mapping[str, Any] = arrays[0]
            unknown = [name for name in named if name not in wanted]
            missing = [one.name for one in self.inputs if not one.optional and one.name not in named]
            if unknown or missing:
                raise InvalidInputError(
                    f"'{self.name}' has the inputs {wanted}: "
                    + " and ".join(
                        f"{words} {names}"
                        for words, names in (("unknown here:", unknown), ("missing:", missing))
                        if names
                    )
                    + "."
                )
            return named
        if len(arrays) != len(wanted):
            raise InvalidInputError(
                f"'{self.name}' has {len(wanted)} inputs, {wanted}; {len(arrays)} arrays were given. Pass one for each "
                "in this order, or a mapping from their names."
            )
        return dict(zip(wanted, arrays, strict=True))

    def _fit(self, tensor: Tensor, given: Any) -> Array:
        array = self._array(tensor, given)
        if tensor.datatype == "BYTES" and array.dtype.kind in "SU":
            array = array.astype(np.object_)
        if array.dtype != tensor.dtype:
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" is {tensor.datatype}, given was {array.dtype}. "
                + (
                    "Pass bytes or str."
                    if tensor.dtype.hasobject
                    else f"Convert it: array.astype({_named(tensor.dtype)})."
                )
            )
        if tensor.dtype.hasobject:
            array = self._as_bytes(tensor, array)
        if len(array.shape) != len(tensor.shape) or any(
            want not in (-1, have) for want, have in zip(tensor.shape, array.shape, strict=True)
        ):
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" has shape {list(tensor.shape)}, given was {list(array.shape)}."
                + self._hint(tensor, array.shape)
            )
        return array

    def _array(self, tensor: Tensor, given: Any) -> Array:
        # An array on a GPU has what is looked at here: dtype, shape, rows and bytes.
        found = on_device(given)
        if found is not None:
            # By torch's name, since CUDA's interface has none for it.
            is_bf16 = tensor.datatype == "BF16" and found.dtype == np.dtype("V2")
            return cast(Array, replace(found, dtype=tensor.dtype) if is_bf16 else found)
        try:
            return np.asarray(given)
        except Exception as error:  # libraries have many words for what they do not convert
            raise InvalidInputError(
                f"'{self.name}': input \"{tensor.name}\" is {type(given).__name__}, of which numpy makes no array "
                f"({error}). Pass a numpy array."
            ) from error

    def _as_bytes(self, tensor: Tensor, array: Array) -> Array:
        """Strings as they are sent: str as UTF-8."""
        if all(isinstance(one, bytes) for one in array.flat):
            return array
        encoded = np.empty(array.size, np.object_)
        for place, one in enumerate(array.flat):
            if not isinstance(one, bytes | str):
                raise InvalidInputError(
                    f"'{self.name}': input \"{tensor.name}\" holds a {type(one).__name__}. Pass bytes or str."
                )
            try:
                encoded[place] = one.encode() if isinstance(one, str) else one
            except UnicodeEncodeError as error:
                raise InvalidInputError(
                    f"'{self.name}': input \"{tensor.name}\" holds a str with {one[error.start]!r} at {error.start}, "
                    "half of a character, which UTF-8 cannot hold. Pass the bytes that you mean, or replace it: "
                    'text.encode(errors="replace").'
                ) from error
        return encoded.reshape(array.shape)

    def _hint(self, tensor: Tensor, shape: tuple[int, ...]) -> str:
        if self.max_batch_size and len(shape) == len(tensor.shape) - 1:
            return " The first axis counts rows: pass one row as array[None]."
        return " -1 stands for any number." if -1 in tensor.shape else ""

    def _check_rows(self, arrays: Mapping[str, Array]) -> None:
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            raise InvalidInputError(f"'{self.name}': the inputs of one request have the same rows, given were {rows}.")
        count = next(iter(rows.values()), 1)
        if not 1 <= count <= self.max_batch_size:
            raise InvalidInputError(
                f"'{self.name}': one request has 1 to {self.max_batch_size} rows (max_batch_size), given were {count}. "
                + ("Split it into several." if count else "Pass one row at least.")
            )


def _tensor(config: ModelConfig, tensor: Any, batch: tuple[int, ...]) -> Tensor:
    known = tensor.data_type in DataType.values()
    kind = DataType.Name(tensor.data_type) if known else f"datatype {tensor.data_type}"
    datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
    if datatype not in DTYPES:
        raise InvalidInputError(
            f"'{config.name}': \"{tensor.name}\" is {kind}, which this client has no dtype for.", model=config.name
        )
    is_input = isinstance(tensor, ModelInput)
    return Tensor(
        name=tensor.name,
        datatype=datatype,
        dtype=DTYPES[datatype],
        shape=(*batch, *tensor.dims),
        optional=is_input and tensor.optional,
        ragged=is_input and tensor.allow_ragged_batch,
        batched=bool(batch),
    )


def _named(dtype: np.dtype[Any]) -> str:
    """A dtype as a program writes it."""
    kind = dtype.type
    return f"{kind.__module__}.{kind.__name__}"
