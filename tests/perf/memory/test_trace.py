"""Readers of memory traces: TensorFlow logs, torch profiles, onnxruntime profiles and our own files."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tiny_models import onnx_model

from perf.memory import record
from perf.memory.trace import (
    onnxruntime_events,
    onnxruntime_profile,
    reading,
    tensorflow_log,
    torch_profile,
    trace_file,
)
from perf.memory.trace.ledger import Ledger
from perf.memory.trace.trace import Allocation
from triton_batching.terminal import Mistake

PREFIX = "2019-11-27 08:19:35.172: I tensorflow/core/framework/log_memory.cc:35] __LOG_MEMORY__ "
POOL = (
    'MemoryLogTensorAllocation { step_id: 1 kernel_name: "vgg_16/pool3/MaxPool" tensor { dtype: DT_FLOAT shape { '
    "dim { size: 64 } dim { size: 256 } dim { size: 28 } dim { size: 28 } } allocation_description { "
    'requested_bytes: 51380224 allocated_bytes: 51380224 allocator_name: "GPU_0_bfc" allocation_id: 101 '
    "has_single_reference: true ptr: 140233486991360 } } }"
)
FREE = 'MemoryLogTensorDeallocation { allocation_id: 101 allocator_name: "GPU_0_bfc" }'


def test_a_tensorflow_line_is_read_to_the_byte() -> None:
    (trace,) = tensorflow_log.parse(PREFIX + POOL)
    assert trace.device == "GPU_0_bfc"
    assert trace.allocations == (
        Allocation(
            id=101, requested_bytes=51_380_224, held_bytes=51_380_224, allocated_at=0, name="vgg_16/pool3/MaxPool"
        ),
    )
    assert trace.live_peak_bytes == 64 * 256 * 28 * 28 * 4
    assert trace.unmatched == trace.allocations
    (pair,) = tensorflow_log.parse(f"{PREFIX}{POOL}\nnot a memory line\n{PREFIX}{FREE}\n")
    assert (pair.allocations[0].freed_at, pair.moments, pair.unmatched, pair.remarks) == (1, 2, (), ())


def test_a_tensorflow_buffer_is_its_allocator_and_id() -> None:
    other = POOL.replace("GPU_0_bfc", "cpu")
    gpu, cpu = tensorflow_log.parse("\n".join(PREFIX + line for line in (POOL, other, FREE)))
    assert (gpu.device, cpu.device) == ("GPU_0_bfc", "cpu")
    assert (len(gpu.unmatched), len(cpu.unmatched)) == (0, 1)


def test_a_tensorflow_buffer_that_is_logged_again_is_one_buffer() -> None:
    lines = [POOL, POOL.replace("pool3/MaxPool", "Reshape"), POOL.replace("TensorAllocation", "TensorOutput"), FREE]
    (trace,) = tensorflow_log.parse("\n".join(PREFIX + line for line in lines))
    assert [one.name for one in trace.allocations] == ["vgg_16/pool3/MaxPool"]
    assert [remark.text for remark in trace.remarks] == ["1 more lines name a buffer that is live already"]


def test_fields_that_proto3_leaves_out_are_zero() -> None:
    made = POOL.replace("allocation_id: 101 ", "").replace("allocated_bytes: 51380224 ", "")
    freed = FREE.replace("allocation_id: 101 ", "")
    (trace,) = tensorflow_log.parse(f"{PREFIX}{made}\n{PREFIX}{freed}")
    assert (trace.allocations[0].id, trace.allocations[0].held_bytes, trace.unmatched) == (0, None, ())


def test_raw_allocations_count_and_a_release_of_something_unknown_is_reported() -> None:
    lines = (
        FREE,
        'MemoryLogRawAllocation { step_id: -3 operation: "TF_AllocateTensor" num_bytes: 1000 allocation_id: 7 '
        'allocator_name: "GPU_0_bfc" }',
        'MemoryLogRawDeallocation { step_id: -3 operation: "x" allocation_id: 7 allocator_name: "GPU_0_bfc" '
        "deferred: true }",
        'MemoryLogStep { step_id: 4 handle: "->" }',
    )
    (trace,) = tensorflow_log.parse("\n".join(PREFIX + line for line in lines))
    assert [(one.requested_bytes, one.freed_at) for one in trace.allocations] == [(1000, 1)]
    assert [(one.where, "101" in one.text) for one in trace.remarks] == [("line 1", True)]


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        (PREFIX + POOL[:-30], len(PREFIX) - 14, "cut line"),
        (PREFIX + POOL.replace("51380224", "many", 1), (PREFIX + POOL).index("51380224") + 1, "many"),
        (PREFIX + POOL.replace("shape {", "shape"), (PREFIX + POOL).index("{ dim") + 1, "dim"),
        (PREFIX + POOL.replace("TensorAllocation", "Nonsense"), len(PREFIX) + 1, "MemoryLogNonsense"),
    ],
)
def test_a_broken_tensorflow_line_is_an_error_with_line_and_column(line: str, column: int, text: str) -> None:
    with pytest.raises(Mistake) as caught:
        tensorflow_log.parse(f"first\n{line}\n", "train.log")
    place, message = str(caught.value).split(": ", 1)
    assert text in message
    name, found_line, found_column = place.split(":")
    assert (name, found_line) == ("train.log", "2")
    assert abs(int(found_column) - column) <= 2


def memory_event(time: float, size: int, address: int, device: int = 0) -> dict[str, object]:
    values = {"Bytes": size, "Addr": address, "Device Type": device, "Device Id": -1 if device == 0 else 0}
    return {"ph": "i", "name": "[memory]", "ts": time, "args": values}


def test_torch_memory_events_pair_by_address_and_time() -> None:
    events = [memory_event(3, -64, 16), memory_event(1, 64, 16), memory_event(2, 32, 48), memory_event(4, 8, 16)]
    events += [memory_event(5, 100, 16, device=1), memory_event(6, -9, 999), {"name": "aten::relu", "ts": 0}]
    cpu, cuda = torch_profile.parse(json.dumps({"traceEvents": events}).encode())
    assert (cpu.device, cuda.device) == ("cpu", "cuda:0")
    assert [(one.requested_bytes, one.allocated_at, one.freed_at) for one in cpu.allocations] == [
        (64, 0, 2),
        (32, 1, None),
        (8, 3, None),
    ]
    assert cpu.live_peak_bytes == 96
    assert [remark.where for remark in cpu.remarks] == ["traceEvents[5]"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"traceEvents": [\n {"name": }]}', "profile:2:11: not JSON"),
        (b'{"traceEvents": 3}', "'traceEvents' should be list"),
        (b'{"traceEvents": []}', r"none of 0 events is a \[memory\] event"),
        (json.dumps({"traceEvents": [memory_event(1, 5, 6), {"name": "[memory]"}]}).encode(), r"traceEvents\[1\]"),
    ],
)
def test_a_broken_torch_profile_says_where(data: bytes, text: str) -> None:
    with pytest.raises(Mistake, match=text):
        torch_profile.parse(data)


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
    sizes = [one.requested_bytes for one in trace.allocations]
    assert sorted(set(sizes)) == [mean, small, large]
    assert trace.unmatched == ()
    assert sizes.count(large) in (2, 3)
    assert 2 * large <= trace.live_peak_bytes <= 3 * large + small + mean


def test_an_onnxruntime_profile_agrees_with_the_arena_at_every_node(profile: Path) -> None:
    """What is live after a node, by the trace, is what the arena said it had in use, less the weights."""
    trace = onnxruntime_profile.read(profile)[1]
    events = json.loads(profile.read_text())
    runs = sorted((one["ts"], one["dur"]) for one in events if one["name"] == "model_run")
    nodes = [one for one in events if one["name"].endswith("_kernel_time") and one["ts"] >= runs[1][0]]
    nodes.sort(key=lambda one: one["ts"])
    in_use = [int(one["args"]["mem_bytes_requested_in_use"]) for one in nodes]
    weights = in_use[0] - int(nodes[0]["args"]["mem_requested_in_use_delta"])
    live, levels = 0, set()
    for allocated, one in trace.events():
        live += one.requested_bytes if allocated else -one.requested_bytes
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
    assert [one.requested_bytes for one in trace.allocations] == [2001, *[4] * 300]
    texts = [one.text for one in trace.remarks]
    assert any("kept as one" in text for text in texts)
    assert any("no 4 live buffers add up to" in text for text in texts)
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
    runs = onnxruntime_events.runs(json.dumps(events).encode(), "profile")
    assert [[one.name for one in run] for run in runs] == [["a", "b"], ["c"]]


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
    assert [one.requested_bytes for one in trace.allocations] == [3 * 500 * 4, 3 * 4]
    assert (trace.model, trace.rows, trace.unmatched) == ("tiny", 3, ())
    assert reading.read(trace_file.write(trace, tmp_path / "trace.json")) == (trace,)
    with pytest.raises(Mistake, match="takes batches of 1 to 8 rows, not 9"):
        record.record("tiny", 9, repository=tmp_path)


def test_a_file_is_read_by_what_it_holds(tmp_path: Path, profile: Path) -> None:
    (tmp_path / "log").write_text(PREFIX + POOL)
    (tmp_path / "torch").write_text(json.dumps({"traceEvents": [memory_event(1, 5, 6)]}))
    (tmp_path / "other").write_text("hello")
    sources = [reading.read(path)[0].source for path in (tmp_path / "log", tmp_path / "torch", profile)]
    assert sources == ["tensorflow log", "torch profile", "onnxruntime profile"]
    with pytest.raises(Mistake, match="no kind of trace"):
        reading.read(tmp_path / "other")
    with pytest.raises(Mistake, match="No such file"):
        reading.read(tmp_path / "absent")


def test_the_ledger_keeps_no_empty_buffer_and_closes_one_that_is_allocated_twice() -> None:
    ledger = Ledger("test", "device")
    ledger.allocate("a", 0, where="1")
    ledger.allocate("b", 10, where="2")
    ledger.allocate("b", 20, where="3")
    trace = ledger.trace()
    assert [(one.requested_bytes, one.allocated_at, one.freed_at) for one in trace.allocations] == [
        (10, 0, 1),
        (20, 2, None),
    ]
    assert [remark.where for remark in trace.remarks] == ["1", "3"]
