"""Session options from config.pbtxt's parameters."""

import os
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import session


def config(parameters: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    entries = {key: {"string_value": value} for key, value in (parameters or {}).items()}
    return {"name": "m", "parameters": entries, "instance_group": [{"count": 1}]} | changes


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "threads"),
    [
        ([{"count": 1}], CORES),
        ([{"count": CORES}], 1),
        ([{"count": 1}, {"count": 1}], max(1, CORES // 2)),
        ([{"count": 10 * CORES}], 1),
        ([], CORES),
    ],
)
def test_instances_share_the_cores(groups: list[dict[str, int]], threads: int) -> None:
    assert session.options(config(instance_group=groups), kind="CPU").intra_op_num_threads == threads


def test_a_written_thread_count_wins() -> None:
    made = session.options(config({"intra_op_thread_count": "3", "inter_op_thread_count": "2"}), kind="CPU")
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (3, 2)


@pytest.mark.parametrize(("text", "wanted"), [("off", False), ("TRUE", True), ("0", False), ("1", True)])
def test_switches(text: str, wanted: bool) -> None:
    made = session.options(config({"enable_mem_arena": text, "enable_mem_pattern": text}), kind="CPU")
    assert (made.enable_cpu_mem_arena, made.enable_mem_pattern) == (wanted, wanted)


@pytest.mark.parametrize(
    ("level", "wanted"),
    [(-1, "ORT_ENABLE_BASIC"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL"), (9, "ORT_ENABLE_ALL")],
)
def test_graph_level(level: int, wanted: str) -> None:
    made = session.options(config(optimization={"graph": {"level": level}}), kind="CPU")
    assert made.graph_optimization_level.name == wanted


def test_execution_mode() -> None:
    made = session.options(config({"execution_mode": "1"}), kind="CPU")
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("execution_mode", "2", "Expected values for execution_mode are 0 or 1 but got 2"),
        ("enable_mem_arena", "maybe", "enable_mem_arena are true or on or 1 or false or off or 0 but got maybe"),
        ("intra_op_thread_count", "many", "intra_op_thread_count with value 'many', which is not a whole number"),
    ],
)
def test_bad_values_are_named(key: str, value: str, said: str) -> None:
    with pytest.raises(session.ParameterError, match=said):
        session.options(config({key: value}), kind="CPU")


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine has CUDA")
def test_a_gpu_instance_without_cuda_says_what_is_there() -> None:
    with pytest.raises(session.ParameterError, match=r"KIND_GPU but the installed onnxruntime offers only .*CPU"):
        session.create(config(), Path("model.onnx"), kind="GPU", device_id=0)
