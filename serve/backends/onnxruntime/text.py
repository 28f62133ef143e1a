"""TYPE_STRING tensors: Triton holds them as bytes, onnxruntime's Python interface as str."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class TextError(ValueError):
    """Bytes that onnxruntime's Python interface cannot take."""


def to_text(name: str, array: NDArray[Any]) -> NDArray[np.object_]:
    """Bytes into str of the same shape; raises `TextError` for bytes that are not UTF-8.

    Unlike in the C++ backend, which hands on C strings, a text may hold zero bytes.
    """
    try:
        return _elementwise(array, [element.decode() for element in array.flat])
    except UnicodeDecodeError as error:
        raise TextError(
            f"input '{name}' holds bytes that are not UTF-8 ({error}), which onnxruntime's Python interface cannot "
            "take. Send UTF-8 text, or declare the tensor as TYPE_UINT8."
        ) from error


def to_bytes(array: NDArray[Any]) -> NDArray[np.object_]:
    """Str into bytes of the same shape."""
    return _elementwise(array, [element.encode() for element in array.flat])


def _elementwise(like: NDArray[Any], elements: list[Any]) -> NDArray[np.object_]:
    made = np.empty(len(elements), dtype=np.object_)
    made[:] = elements
    return made.reshape(like.shape)
