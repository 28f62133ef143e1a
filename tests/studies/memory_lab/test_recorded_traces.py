"""Traces: onnxruntime profiles, trace files, and the ledger that builds them."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from memory_instances import trace_of
from onnx import TensorProto, helper, numpy_helper
from tiny_models import onnx_model

from perf.studies.memory_lab import record
from perf.studies.memory_lab.traces import onnxruntime_events, onnxruntime_profile, trace_file
from perf.studies.memory_lab.traces.ledger import Ledger
from triton_batching.terminal import Mistake


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of onnxruntime: y = relu(x + x) x sigmoid(x), two runs of four rows of 1000 floats."""
    folder = tmp_path_factory.mktemp("profile")
    nodes = [
        helper.make_node("Add", ["x", "x"], ["double"]),
        helper.make_node("Exp", ["double"], ["large"]),
        helper.make_node("Sigmoid", ["x"], ["gate"]),
        helper.make_node("MatMul", ["large", "w"], ["small"]),
        helper.make_node("ReduceMean", ["gate"], ["mean"], axes=[1]),
        helper.make_node("Add", ["small", "mean"], ["y"]),
    ]
    weights = numpy_helper.from_array(np.zeros((1000, 10), np.float32), "w")
    onnx_model(folder, "tiny", nodes, dims=(1000, 10), initialisers=[weights])
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern = False
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "run")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path = folder / "tiny" / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, {"x": np.zeros((4, 1000), np.float32)})
    return Path(session.end_profiling())


def test_an_onnxruntime_profile_gives_back_every_tensor(profile: Path) -> None:
    runs = onnxruntime_profile.read(profile)
    assert len(runs) == 2
    trace = runs[1]
    # Four rows of 1000, 10 and 1 floats. Exp takes over the buffer of its input or has its own; nothing else may.
    large, small, mean = 4 * 1000 * 4, 4 * 10 * 4, 4 * 1 * 4
    sizes = [allocation.requested_bytes for allocation in trace.allocations]
    assert sorted(set(sizes)) == [mean, small, large]
    assert trace.unmatched == ()
    assert sizes.count(large) in (2, 3)
    assert 2 * large <= trace.live_peak_bytes <= 3 * large + small + mean


def test_an_onnxruntime_profile_agrees_with_the_arena_at_every_node(profile: Path) -> None:
    """What is live after a node, by the trace, is what the arena said it had in use, less the weights."""
    trace = onnxruntime_profile.read(profile)[1]
    events = json.loads(profile.read_text())
    runs = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "model_run")
    nodes = [event for event in events if event["name"].endswith("_kernel_time") and event["ts"] >= runs[1][0]]
    nodes.sort(key=lambda event: event["ts"])
    in_use = [int(event["args"]["mem_bytes_requested_in_use"]) for event in nodes]
    weights = in_use[0] - int(nodes[0]["args"]["mem_requested_in_use_delta"])
    live, levels = 0, set()
    for allocated, allocation in trace.events():
        live += allocation.requested_bytes if allocated else -allocation.requested_bytes
        levels.add(live)
    assert {value - weights for value in in_use} <= levels
    assert max(in_use) - weights == trace.live_peak_bytes


def test_a_node_of_many_outputs_and_a_release_of_many_buffers_end_soon_with_a_remark() -> None:
    def node(number: int, in_use: int, added: int, outputs: int) -> dict[str, object]:
        values = {"mem_bytes_requested_in_use": str(in_use), "mem_requested_in_use_delta": str(added)}
        values |= {"mem_in_use_delta": str(added), "provider": "CPUExecutionProvider"}
        shapes = [{"float": [2 ** (at % 20)]} for at in range(outputs)]
        return {"name": f"n{number}_kernel_time", "ts": number, "args": {**values, "output_type_shape": shapes}}

    run = {"name": "model_run", "ts": 0, "dur": 1000}
    nodes = [
        node(1, 2001, 2001, 60),
        *(node(at, 2001 + 4 * (at - 1), 4, 1) for at in range(2, 302)),
        node(303, 3002, 0, 0),
    ]
    (trace,) = onnxruntime_profile.parse(json.dumps([run, *nodes]).encode())
    assert [allocation.requested_bytes for allocation in trace.allocations] == [2001, *[4] * 300]
    texts = [remark.text for remark in trace.remarks]
    assert any("taken as one buffer" in text for text in texts)
    assert any("no 4 live buffers add up to them" in text for text in texts)
    assert trace.unmatched == ()


def test_a_node_is_of_the_latest_run_that_began_before_it() -> None:
    def node(name: str, ts: int) -> dict[str, object]:
        return {"name": f"{name}_kernel_time", "ts": ts, "args": {"mem_bytes_requested_in_use": "8"}}

    # Start and duration are both cut to whole microseconds, so a run's last node may seem to begin after its end.
    events = [
        node("load", 1),
        node("a", 11),
        node("b", 16),
        {"name": "model_run", "ts": 10, "dur": 5},
        node("c", 20),
        {"name": "model_run", "ts": 20, "dur": 3},
    ]
    runs = onnxruntime_events.nodes_by_run(json.dumps(events).encode(), "profile")
    assert [[event.name for event in run] for run in runs] == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"[{]", "profile:1:3: not JSON"),
        (b"{}", "a list of events"),
        (b"[]", "no memory to read"),
        (b'[{"name": "a_kernel_time", "ts": 1, "args": {"mem_bytes_requested_in_use": "x"}}]', "event 0.*number"),
    ],
)
def test_a_broken_onnxruntime_profile_says_where(data: bytes, text: str) -> None:
    with pytest.raises(Mistake, match=text):
        onnxruntime_profile.parse(data)


def test_a_recorded_model_goes_through_its_file(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["large"]), helper.make_node("ReduceMean", ["large"], ["y"], axes=[1])]
    onnx_model(tmp_path, "tiny", nodes, dims=(500, 1))
    trace = record.record("tiny", 3, repository=tmp_path)
    assert [allocation.requested_bytes for allocation in trace.allocations] == [3 * 500 * 4, 3 * 4]
    assert (trace.model, trace.rows, trace.unmatched) == ("tiny", 3, ())
    assert trace_file.read(trace_file.write(trace, tmp_path / "trace.json")) == (trace,)
    with pytest.raises(Mistake, match="takes batches of 1 to 8 rows, not 9"):
        record.record("tiny", 9, repository=tmp_path)


def test_the_ledger_keeps_no_empty_buffer_and_closes_one_that_is_allocated_twice() -> None:
    ledger = Ledger("test", "device")
    ledger.allocate("a", 0, where="1")
    ledger.allocate("b", 10, where="2")
    ledger.allocate("b", 20, where="3")
    trace = ledger.trace()
    assert [
        (allocation.requested_bytes, allocation.allocated_at, allocation.freed_at) for allocation in trace.allocations
    ] == [
        (10, 0, 1),
        (20, 2, None),
    ]
    assert [remark.where for remark in trace.remarks] == ["1", "3"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "format 1"),
        ({"allocations": [["a", 5, None, "0", None, ""]]}, r"\[0\]\[3\]"),
        ({"allocations": [["a", -5, None, 0, None, ""]]}, r"\[0\]\[1\]"),
        ({"allocations": [["a", 5, None, 0]]}, r"\[0\]"),
    ],
)
def test_a_broken_trace_file_says_where(change: dict[str, object], text: str, tmp_path: Path) -> None:
    path = trace_file.write(trace_of(["+a", "-a"], {"a": 5}), tmp_path / "trace.json")
    broken = json.dumps(json.loads(path.read_text()) | change).encode()
    with pytest.raises(Mistake, match=text):
        trace_file.parse(broken)
    with pytest.raises(Mistake, match="trace: not a memory trace"):
        trace_file.parse(path.read_bytes()[:-20])


def test_any_onnx_file_is_recorded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["large"]), helper.make_node("ReduceMean", ["large"], ["y"], axes=[1])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    path = tmp_path / "mine.onnx"
    onnx.save(model, path)
    trace = record.record(str(path), 3, dims={"length": 200})
    assert [allocation.requested_bytes for allocation in trace.allocations] == [3 * 200 * 4, 3 * 4]
    assert (trace.model, trace.rows) == ("mine", 3)
    with pytest.raises(Mistake, match="Give its size: --dims length=SIZE"):
        record.record(str(path), 3)
    with pytest.raises(Mistake, match="no such file"):
        record.record(str(tmp_path / "other.onnx"), 3)
