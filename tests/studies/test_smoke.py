"""The pages are what the records say, and the memory lab; `tests/test_readme.py` starts each program."""

from pathlib import Path

import pytest

from perf.studies import archive
from perf.studies.archive import ROOT
from perf.studies.memory_lab import __main__ as memory_lab
from perf.studies.memory_lab.allocators import ONLINE
from perf.studies.pages.__main__ import BLOCK, TABLES, main, pages
from triton_batching.terminal import Mistake


def test_the_pages_are_what_the_records_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert {block["name"] for page in pages(ROOT) for block in BLOCK.finditer(page.read_text())} == set(TABLES)


def test_an_archive_gives_back_the_folder(tmp_path: Path) -> None:
    packed = ROOT / "perf" / "studies" / "results" / "goodput.jsonl"
    assert archive.main(["unpack", str(packed), str(tmp_path / "folder")]) == 0
    assert archive.main(["pack", str(tmp_path / "folder"), str(tmp_path / "again.jsonl")]) == 0
    assert (tmp_path / "again.jsonl").read_text() == packed.read_text()


LINE = "2019-11-27 08:19:35.172: I tensorflow/core/framework/log_memory.cc:35] __LOG_MEMORY__ "
ALLOCATION = (
    'MemoryLogTensorAllocation { step_id: 1 kernel_name: "vgg_16/pool3/MaxPool" tensor { dtype: DT_FLOAT shape { '
    "dim { size: 64 } dim { size: 256 } dim { size: 28 } dim { size: 28 } } allocation_description { "
    'requested_bytes: 51380224 allocated_bytes: 51380224 allocator_name: "GPU_0_bfc" allocation_id: 101 '
    "has_single_reference: true ptr: 140233486991360 } } }"
)
RELEASES = [
    f'MemoryLogTensorDeallocation {{ allocation_id: {number} allocator_name: "GPU_0_bfc" }}' for number in (101, 7)
]


def test_a_tensorflow_log_is_read_to_the_byte(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(["not a memory line", LINE + ALLOCATION, *(LINE + release for release in RELEASES)]))
    ((_, trace),) = memory_lab.traces(log).items()
    assert trace.device == "GPU_0_bfc"
    ((number, requested, held, allocated_at, freed_at, name),) = [
        tuple(getattr(buffer, field) for field in buffer.__struct_fields__) for buffer in trace.allocations
    ]
    assert (number, requested, held) == (101, 51_380_224, 64 * 256 * 28 * 28 * 4)
    assert (allocated_at, freed_at, name) == (0, 1, "vgg_16/pool3/MaxPool")
    assert [(remark.where, remark.text) for remark in trace.remarks] == [
        ("line 4", "7 is freed, but its allocation is missing")
    ]
    log.write_text(LINE + ALLOCATION.replace("51380224", "many", 1))
    with pytest.raises(Mistake, match=r"train\.log:1:\d+: not protobuf text"):
        memory_lab.traces(log)


def test_allocators_hold_at_least_the_bound_and_caching_calls_the_device_ten_times_less() -> None:
    path = ROOT / "perf" / "studies" / "results" / "memory" / "traces" / "resnet50-onnxruntime-8.json"
    (trace,) = memory_lab.traces(path).values()
    trials = {name: memory_lab.trial(trace, name, make) for name, make in ONLINE.items()}
    assert all(each.held_over_load >= 1 for each in trials.values())
    assert trials["naive"].first_calls == 2 * len(trace.allocations)
    assert 10 * trials["pytorch caching"].first_calls <= trials["naive"].first_calls
