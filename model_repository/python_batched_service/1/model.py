"""Returns the sum and the number of the values of each request, for requests of any length in one batch.

A Python model gets the requests one by one, each with its own shape, so `allow_ragged_batch` only changes which
requests Triton puts into one call of `execute`. The data type of the input chooses how values are encoded.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

VARINT, FIXED32 = 0, 5


class TritonPythonModel:
    """One instance; stateless."""

    def initialize(self, args: dict[str, str]) -> None:
        """Choose the reader for the input's type."""
        self._input = json.loads(args["model_config"])["input"][0]
        self._read = READERS[self._input["data_type"]]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request; an unreadable request fails alone."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(request, self._input["name"]).as_numpy()
        try:
            rows = [self._read(row) for row in tensor]
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{self._input['name']}: {error}"))
        # A client that pads marks the padding with NaN; values of zero are values.
        own = [row[~np.isnan(row)] for row in rows]
        sums = np.array([[row.sum()] for row in own], dtype=np.float32)
        lengths = np.array([[row.size] for row in own], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", sums), pb_utils.Tensor("LENGTH", lengths)])


def floats(row: Any) -> Any:
    """FP32 [-1]: the values themselves."""
    return row


def packed(row: Any) -> Any:
    """STRING [1]: the bytes of float32 values, little-endian."""
    content = bytes(row[0])
    if len(content) % 4:
        raise ValueError(f"{len(content)} bytes are no whole number of float32 values. Send 4 bytes per value.")
    return np.frombuffer(content, dtype="<f4")


def message(row: Any) -> Any:
    """UINT8 [-1]: a serialised message; fixed32 fields hold value + 1 (perf/studies/ragged_requests)."""
    content, values, at = row.tobytes(), [], 0
    while at < len(content):
        tag, at = _varint(content, at)
        if tag & 7 == VARINT:
            value, at = _varint(content, at)
            value -= (value >> 63) << 64  # a negative int32 is written as a 64-bit two's complement
        elif tag & 7 == FIXED32 and at + 4 <= len(content):
            value, at = int.from_bytes(content[at : at + 4], "little") - 1, at + 4
        else:
            raise ValueError(f"field {tag >> 3} has wire type {tag & 7} or is truncated. Send int32 or fixed32 fields.")
        values.append(value)
    return np.array(values, dtype=np.float32)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise ValueError("a varint is truncated. Send the whole serialised message.")


READERS: dict[str, Callable[[Any], Any]] = {"TYPE_FP32": floats, "TYPE_STRING": packed, "TYPE_UINT8": message}
