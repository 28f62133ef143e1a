"""The doctor reads ONNX files as onnx does, without loading the weights, and leaves what it cannot read alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from padded_models import encoder

from export.graph.signature import Signature, SignatureError
from serve.doctor.examination import examine
from serve.doctor.graph import Graph
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES
from serve.doctor.rules import all_rules
from serve.doctor.target import Target
from serve.doctor.wire import SMALL_BYTES, without_weights
from triton_batching.releases import Release

QUICK = settings(max_examples=25, derandomize=True)
DATA = ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "double_data", "uint64_data")


def model(weights: list[TensorProto]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights))


@QUICK
@given(st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_only_the_weights_are_left_out(sizes: list[int], raw: bool) -> None:
    """Small tensors stay, since they are shapes and axes."""
    weights = [
        numpy_helper.from_array(np.arange(size, dtype=np.float32), f"w{index}")
        if raw
        else helper.make_tensor(f"w{index}", TensorProto.INT64, [size], list(range(size)))
        for index, size in enumerate(sizes)
    ]
    expected = model(weights)
    read = onnx.ModelProto.FromString(without_weights(memoryview(expected.SerializeToString())))
    for tensor in (tensor for tensor in expected.graph.initializer if tensor.ByteSize() > SMALL_BYTES):
        for name in DATA:
            tensor.ClearField(name)
    assert read == expected


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


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime_padded"])
def test_a_model_whose_requests_are_padded_has_no_finding(backend: str, tmp_path: Path) -> None:
    """Its graph takes rows of one length and a mask that no client sends, in both names of the backend."""
    path = encoder(tmp_path, "m", backend=backend) / "config.pbtxt"
    codes = {finding.code for finding in examine(Repository(path=tmp_path), all_rules())}
    assert not codes & {"G101", "R305", "P501", "P502", "L004"}
    # By the name of the drop-in backend Triton makes one instance, not two.
    path.write_text(path.read_text().replace("count: 1 ", ""))
    found = examine(Repository(path=tmp_path), [RULES["I401"]])
    assert len(found) == (backend == "onnxruntime")


TENSORS = """\
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
BATCHES = "max_batch_size: 8\ndynamic_batching { }\n"
PACKAGE = 'backend: "pytorch"\nplatform: "torch_aoti"\n'


@pytest.mark.parametrize(
    ("file", "config", "release", "codes"),
    [
        ("model.pt", f'backend: "pytorch"\nplatform: "pytorch_libtorch"\n{BATCHES}', (26, 3), []),
        ("model.pt", f'platform: "pytorch_libtorch"\n{BATCHES}', (26, 3), []),
        ("model.pt", BATCHES, (26, 3), []),
        ("model.plan", f'platform: "tensorrt_plan"\n{BATCHES}', (26, 3), []),
        ("model.pt2", f"{PACKAGE}max_batch_size: 0\n", (26, 3), []),
        ("model.pt2", f"{PACKAGE}max_batch_size: 8\n", (26, 3), []),
        ("model.pt2", "max_batch_size: 0\n", (26, 3), []),
        ("model.pt2", f"{PACKAGE}max_batch_size: 0\n", (26, 2), ["L006"]),
        ("model.pt", f"{PACKAGE}max_batch_size: 0\n", (26, 3), ["L008"]),
    ],
)
def test_compiled_models_have_findings_only_if_the_release_does_not_serve_them(
    file: str, config: str, release: Release, codes: list[str], tmp_path: Path
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / file).write_bytes(b"compiled")
    (tmp_path / "m" / "config.pbtxt").write_text(config + TENSORS)
    found = examine(Repository(path=tmp_path, target=Target(release=release)), all_rules())
    assert [finding.code for finding in found] == codes
