"""The pages are what the records say, and the memory allocators; `tests/test_readme.py` starts each program."""

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.studies import allocators, archive
from perf.studies.archive import ROOT
from perf.studies.pages.__main__ import BLOCK, TABLES, main, pages
from triton_batching.terminal import Mistake


@pytest.mark.slow
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


def test_a_tensorflow_log_is_read_to_the_byte() -> None:
    lines = ["not a memory line", LINE + ALLOCATION, *(LINE + release for release in RELEASES)]
    size = 64 * 256 * 28 * 28 * 4
    assert allocators.logged("\n".join(lines), "train.log") == [("GPU_0_bfc 101", size), ("GPU_0_bfc 101", 0)]
    with pytest.raises(Mistake, match=r"train\.log: no line has an allocation"):
        allocators.logged("nothing", "train.log")


@given(st.lists(st.tuples(st.integers(1, 2**22), st.integers(0, 5)), min_size=1, max_size=40))
def test_allocators_hold_at_least_what_is_live_and_call_the_device_once(buffers: list[tuple[int, int]]) -> None:
    """Buffers that live for some allocations more; a replay asserts that none overlap."""
    ends = {number: number + life for number, (_, life) in enumerate(buffers)}
    events = []
    for number, (size, _) in enumerate(buffers):
        events.append((str(number), size))
        events += [(str(other), 0) for other, end in ends.items() if end == number]
    events += [(str(number), 0) for number, end in ends.items() if end >= len(buffers)]
    run = allocators.compared("drawn", events)
    trials = {trial.allocator: trial for trial in run.trials}
    assert all(trial.held_over_bound >= 1 and 0 <= trial.idle < 1 for trial in trials.values())
    assert (trials["naive"].held_over_bound, trials["naive"].first_calls) == (1, 2 * len(buffers))
    assert all(trial.first_calls <= len(buffers) for name, trial in trials.items() if name != "naive")


@pytest.mark.slow
def test_the_allocations_of_a_graph_are_those_of_its_tensors(ranker: Path) -> None:
    """Each tensor is allocated once, and freed after its last reader; the output at the end."""
    events = allocators.recorded("ranker", 8)
    made = [name for name, size in events if size]
    assert sorted(made) == sorted(name for name, size in events if not size) == sorted(set(made))
    nodes = onnx.load(ranker).graph.node
    assert len(made) == sum(len(node.output) for node in nodes)
    assert events[-1] == (nodes[-1].output[0], 0)
