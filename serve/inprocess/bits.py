"""Reads DLPack tensors; one of BF16, which numpy does not have, as an array of uint16 with the same bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve.inprocess.modules import PrivateModules
from serve.installation import DROP_IN

UNSIGNED, BFLOAT = 1, 4

# The backend is a folder of top-level modules, and no package.
_dlpack: Any = PrivateModules(DROP_IN / "onnxruntime", {}).load("dlpack")


class _Capsule:
    """What numpy takes, around a capsule whose type it can read."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def from_dlpack(value: Any) -> tuple[NDArray[Any], bool]:
    """The array, and whether it holds the bits of BF16; the memory is shared and stays alive with the array."""
    capsule = value.__dlpack__() if hasattr(value, "__dlpack__") else value
    header = _dlpack.header_of(capsule)
    is_bf16 = header.code == BFLOAT
    if is_bf16:
        header.code = UNSIGNED  # of as many bits
    return np.from_dlpack(_Capsule(capsule)), is_bf16
