"""Makes the responses of an execution, and fills those of the one before again.

A new `pb_utils.Tensor` costs as much as all other Python of a small request, and its memory is allocated under a lock
that Triton's server takes too. A tensor that was sent lies in memory that this process shares with the server; it can
be written and sent again once the server has copied it. That is certain when the next `execute` begins: the server
copies all returned responses into buffers of its own and only then sends the message that the stub waits for before it
takes the next batch (`execute_finalize` in python_be.cc and pb_stub.cc, the same from release 24.10 to 26.07). It does
not hold for responses that another thread sends, so `batch_policy` makes new ones.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from dlpack import array_of
from executor import Answer
from numpy.typing import NDArray
from tensor_types import Config

KEPT_BYTES = 1 << 20
"""Shared memory that tensors keep, as much as Triton gives every instance."""


class Kept:
    """The tensor of one output at one place of the batch.

    The second array of a shape in a row makes a tensor to keep, the ones after it are written into its memory.
    """

    __slots__ = ("_largest", "_make", "_own", "_shape", "_tensor", "_view")

    def __init__(self, make: Callable[[NDArray[Any]], Any], largest_bytes: int) -> None:
        self._make, self._largest = make, largest_bytes
        self._shape: tuple[int, ...] | None = None
        self._own: NDArray[Any] | None = None
        self._tensor: Any = None
        self._view: NDArray[Any] | None = None

    def tensor(self, array: NDArray[Any]) -> Any:
        """A tensor with these values; the values of the one before are lost."""
        if array.shape == self._shape:
            if self._view is not None:
                self._view[...] = array
                return self._tensor
            return self._keep(array) if self._tensor is None else self._open(array)
        self._tensor = self._view = self._own = None
        self._shape = array.shape if array.ndim and 0 < array.nbytes <= self._largest else None
        return self._make(array)

    def _keep(self, array: NDArray[Any]) -> Any:
        # A copy, because the tensor would keep the outputs of the whole batch alive.
        self._own = np.array(array, order="C")
        self._tensor = self._make(self._own)
        return self._tensor

    def _open(self, array: NDArray[Any]) -> Any:
        """Write into the memory that the tensor had when it was sent, if that is no longer the array's own."""
        view, own = array_of(self._tensor, array.dtype), self._own
        assert own is not None
        if view.__array_interface__["data"] == own.__array_interface__["data"]:
            self._largest, self._shape, self._tensor = 0, None, None  # it was not copied: never keep another one
            return self._make(array)
        self._own, self._view = None, view
        view[...] = array
        return self._tensor


class Responses:
    """Makes responses with the outputs of `config`; with `keep`, `fill` writes into the last ones if shapes are equal.

    `utilities` is `triton_python_backend_utils`.
    """

    def __init__(self, config: Config, utilities: Any, *, keep: bool) -> None:
        self._response = utilities.InferenceResponse
        self._makers = [_maker(output, utilities.Tensor) for output in config["output"]]
        texts_or_bits = any(output["data_type"] in ("TYPE_STRING", "TYPE_BF16") for output in config["output"])
        self._most = 0 if texts_or_bits or not keep else max(1, config["max_batch_size"])
        self._largest_bytes = KEPT_BYTES // max(1, self._most * len(self._makers))
        self._places: list[Place] = []

    def new(self, answer: Answer) -> Any:
        """A new response with the outputs of one request."""
        return self._response([make(array) for make, array in zip(self._makers, answer, strict=True)])

    def fill(self, answers: Sequence[Answer]) -> list[Any]:
        """The responses of one `execute`, which must be returned by it: the next call writes into their memory."""
        if len(answers) > self._most:
            return [*map(self.new, answers)]
        while len(self._places) < len(answers):
            self._places.append(Place(self._response, [Kept(make, self._largest_bytes) for make in self._makers]))
        return [place.response(answer) for place, answer in zip(self._places, answers, strict=False)]


class Place:
    """One place of the batch, with the response that its last request got."""

    __slots__ = ("_kept", "_last", "_make", "_only", "_sent")

    def __init__(self, make: Callable[[Sequence[Any]], Any], kept: Sequence[Kept]) -> None:
        self._make, self._kept, self._only = make, kept, kept[0] if len(kept) == 1 else None
        self._last = self._sent = None

    def response(self, answer: Answer) -> Any:
        """A response with these outputs."""
        if self._only is None:
            # New each time: Triton removes the outputs that a request does not ask for.
            return self._make([kept.tensor(array) for kept, array in zip(self._kept, answer, strict=True)])
        tensor = self._only.tensor(answer[0])
        if tensor is not self._last:
            self._last, self._sent = tensor, self._make([tensor])
        return self._sent


def _maker(output: Mapping[str, Any], tensor: Any) -> Callable[[NDArray[Any]], Any]:
    """A function that makes a tensor of this output."""
    name = output["name"]
    if output["data_type"] != "TYPE_BF16":
        return partial(tensor, name)
    import bfloat16

    return lambda bits: tensor.from_dlpack(name, bfloat16.to_dlpack(bits))
