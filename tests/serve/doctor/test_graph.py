"""The doctor reads ONNX files as onnx does, without loading the weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from padded_models import encoder

from export.graph.signature import Signature, SignatureError
from serve.doctor.examination import examine
from serve.doctor.graph import Graph
from serve.doctor.repository import Repository
from serve.doctor.rules import all_rules
from serve.doctor.wire import SMALL_BYTES, without_weights


def model(weights: list[TensorProto]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights))


def stripped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same with the weights, not small shapes and axes, cleared by onnx's own means."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in (tensor for tensor in copy.graph.initializer if tensor.ByteSize() > SMALL_BYTES):
        for name in ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "double_data", "uint64_data"):
            tensor.ClearField(name)
    return copy


@given(st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_only_the_weights_are_left_out(sizes: list[int], raw: bool) -> None:
    weights = [
        numpy_helper.from_array(np.arange(size, dtype=np.float32), f"w{index}")
        if raw
        else helper.make_tensor(f"w{index}", TensorProto.INT64, [size], list(range(size)))
        for index, size in enumerate(sizes)
    ]
    proto = model(weights)
    read = onnx.ModelProto.FromString(without_weights(memoryview(proto.SerializeToString())))
    assert read == stripped(proto)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        without_weights(memoryview(data))
    except ValueError:
        return


def test_the_weights_of_a_large_model_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    weights = numpy_helper.from_array(np.zeros(10_000_000, np.float32), "w")
    path.write_bytes(model([weights]).SerializeToString())
    graph = Graph.read(path)
    assert graph.signature == Signature.of(path)
    assert len(graph.proto.SerializeToString()) < 1000


@pytest.mark.parametrize("data", [b"", b"\x3a\x7f", b"not a model at all", b"\x08\x08"])
def test_a_file_that_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(SignatureError, match=r"model\.onnx"):
        Graph.read(path)


def test_a_model_whose_requests_are_padded_has_no_finding(tmp_path: Path) -> None:
    """Its graph takes rows of one length and a mask that no client sends, in both names of the backend."""
    for backend in ("onnxruntime", "onnxruntime_padded"):
        encoder(tmp_path / backend, "m", backend=backend)
        codes = {finding.code for finding in examine(Repository(path=tmp_path / backend), all_rules())}
        assert not codes & {"G101", "R305", "P501", "P502", "L004"}, (backend, codes)
