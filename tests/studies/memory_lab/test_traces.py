"""Readers of other tools' traces: TensorFlow logs and torch profiles, and the recognition of a file's kind."""

import json
from pathlib import Path

import pytest
from memory_instances import trace_of

from perf.studies.memory_lab.traces import reading, tensorflow_log, torch_profile, trace_file
from perf.studies.memory_lab.traces.trace import Allocation
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
    assert [allocation.name for allocation in trace.allocations] == ["vgg_16/pool3/MaxPool"]
    assert [remark.text for remark in trace.remarks] == ["1 more lines name a buffer that is already live"]


def test_fields_that_proto3_leaves_out_are_zero() -> None:
    allocated = POOL.replace("allocation_id: 101 ", "").replace("allocated_bytes: 51380224 ", "")
    freed = FREE.replace("allocation_id: 101 ", "")
    (trace,) = tensorflow_log.parse(f"{PREFIX}{allocated}\n{PREFIX}{freed}")
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
    assert [(allocation.requested_bytes, allocation.freed_at) for allocation in trace.allocations] == [(1000, 1)]
    assert [(remark.where, "101" in remark.text) for remark in trace.remarks] == [("line 1", True)]


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        (PREFIX + POOL[:-30], len(PREFIX) - 14, "incomplete line"),
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
    assert [
        (allocation.requested_bytes, allocation.allocated_at, allocation.freed_at) for allocation in cpu.allocations
    ] == [
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


def test_a_file_is_recognised_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(PREFIX + POOL)
    (tmp_path / "torch").write_text(json.dumps({"traceEvents": [memory_event(1, 5, 6)]}))
    values = {"mem_bytes_requested_in_use": "8", "mem_requested_in_use_delta": "8", "mem_in_use_delta": "256"}
    node = {"name": "a_kernel_time", "ts": 1, "args": values | {"output_type_shape": [{"float": [2]}]}}
    (tmp_path / "profile").write_text(json.dumps([{"name": "model_run", "ts": 0, "dur": 3}, node]))
    trace_file.write(trace_of(["+a", "-a"], {"a": 5}), tmp_path / "trace")
    (tmp_path / "other").write_text("hello")
    sources = [reading.read(tmp_path / name)[0].source for name in ("log", "torch", "profile", "trace")]
    assert sources == ["tensorflow log", "torch profile", "onnxruntime profile", "test"]
    with pytest.raises(Mistake, match="no known kind of trace"):
        reading.read(tmp_path / "other")
    with pytest.raises(Mistake, match="No such file"):
        reading.read(tmp_path / "absent")
