"""The graph of an ONNX file, without the weights."""

import mmap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import onnx
from google.protobuf.message import DecodeError

from export.graph.signature import Signature, SignatureError
from serve.doctor.wire import without_weights

LARGEST_BYTES = 2**31  # protobuf's own limit: a larger one cannot be an ONNX file with its weights inside


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""  # an empty file cannot be mapped
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            try:
                return without_weights(data)
            except ValueError as error:
                fault = str(error)  # the error holds views of the file, which could not be closed
        raise ValueError(fault)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One ONNX file without its weights."""

    path: Path
    proto: onnx.ModelProto

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; raises `SignatureError` if it is not an ONNX model."""
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
                raise SignatureError(f"{path}: not a readable ONNX file.")
            proto = onnx.ModelProto.FromString(_read(path))
        except (OSError, DecodeError, ValueError) as error:
            raise SignatureError(f"{path}: not a readable ONNX file ({error}).") from error
        if not proto.HasField("graph"):
            raise SignatureError(f"{path}: holds no ONNX graph.")
        return cls(path=path, proto=proto)

    @cached_property
    def signature(self) -> Signature:
        """Names, types and shapes of inputs and outputs; with the batch axis, -1 for a dynamic size."""
        return Signature.of_graph(self.proto.graph)

    @property
    def opset(self) -> int:
        """The opset of ONNX's own operators; 0 if the file does not say."""
        return max((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
