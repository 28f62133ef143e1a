"""The estimate of whole networks against onnxruntime itself: every boundary of every run, to the byte."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest

from export.repository import served_file
from perf.memory import greedy
from perf.memory.allocators.bfc import SAME_AS_REQUESTED
from perf.memory.estimate.batch_memory import Model
from perf.memory.estimate.timeline import Boundary
from perf.studies.memory_estimate.check import check, mismatches
from perf.studies.memory_estimate.measured import feeds_of, measure
from perf.studies.memory_estimate.zoo import ZOO
from perf.studies.memory_lab.checker import faults


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    def save(name: str) -> Path:
        path = tmp_path / f"{name}.onnx"
        onnx.save(ZOO[name](), path)
        return path

    return save


@pytest.mark.parametrize("name", ["bert", "depthwise", "gru", "lstm", "reshaper", "transformer", "unet", "upscaler"])
@pytest.mark.parametrize("setting", ["basic", "served"])
def test_every_boundary_of_a_network_is_exact(name: str, setting: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    sessions = [(3,), (16,)] if setting == "basic" else [(2, 8, 2, 8, 5)]
    for checked in check(path, setting, feeds_of(name, path), sessions=sessions):
        assert checked.mismatches == ()
        assert checked.boundaries > 4 * len(checked.sizes)


def test_the_recogniser_is_exact() -> None:
    path = served_file("text_recognition")
    for checked in check(path, "served", feeds_of("text_recognition", path), sessions=[(1, 1), (8, 8, 3)]):
        assert checked.mismatches == ()


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("name", ["depthwise", "dense_net", "unet"])
def test_the_scratch_of_several_threads_is_exact(name: str, threads: int, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    model, feeds = Model.of(path, threads=threads), feeds_of(name, path)
    for batch in (1, 3):
        (measured,) = measure(path, [feeds(batch)], threads=threads)
        (estimated,) = model.runs([model.inputs(batch, {})])
        assert list(mismatches(estimated.boundaries, measured)) == []


def test_an_arena_that_grows_by_the_request_is_exact(saved: Callable[[str], Path]) -> None:
    path = saved("transformer")
    # The arena with this strategy is shared by the whole process and keeps the regions of earlier sessions.
    with multiprocessing.get_context("spawn").Pool(1) as process:
        measured = process.apply(_same_as_requested, (path, 16))
    model = Model.of(path, rules=SAME_AS_REQUESTED)
    (estimated,) = model.runs([model.inputs(16, {})])
    assert list(mismatches(estimated.boundaries, measured)) == []


def _same_as_requested(path: Path, batch: int) -> list[Boundary]:
    where = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1}))
    (run,) = measure(path, [feeds_of(path.stem, path)(batch)], shared_arena=True)
    return run


@pytest.mark.parametrize("name", ["dense_net", "transformer", "unet"])
def test_an_offset_plan_is_sound_and_not_below_what_is_live(name: str, saved: Callable[[str], Path]) -> None:
    model = Model.of(saved(name))
    memory = model.at(4, {})
    buffers = model.buffers(model.shapes(model.inputs(4, {})))
    placement = greedy.plan(buffers)
    assert faults(placement, tuple(buffers)) == []
    live = [
        sum(buffer.size for buffer in buffers if buffer.lower <= at < buffer.upper)
        for at in range(len(model.graph.nodes))
    ]
    assert memory.lower_bound == max(live)
    assert max(live) <= memory.packed == placement.height <= memory.activations_peak


@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_arena_never_holds_less_for_the_memory_pattern(name: str, saved: Callable[[str], Path]) -> None:
    path = saved(name)
    on, off = (Model.of(path, level="all", pattern=pattern).at(32, {}).arena_held for pattern in (True, False))
    assert off <= on
