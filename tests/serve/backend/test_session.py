"""Session options from config.pbtxt's parameters."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import session
from parameters import ParameterError
from tiny_models import lookup


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
    ("key", "value", "message"),
    [
        ("execution_mode", "2", "Expected values for  execution_mode are 0 or 1 but got 2 "),
        ("enable_mem_arena", "maybe", "failed to convert 'maybe' to boolean. It is the value of 'enable_mem_arena'"),
        ("enable_mem_pattern", "2", "failed to convert '2' to boolean"),
        ("intra_op_thread_count", "many", "failed to convert 'many' to integral number"),
        ("execution_mode", "fast", "failed to convert 'fast' to integral number"),
    ],
)
def test_bad_values_are_named(key: str, value: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        session.options(config({key: value}), kind="CPU")


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine has CUDA")
def test_a_gpu_instance_without_cuda_says_what_is_there() -> None:
    with pytest.raises(ParameterError, match=r"KIND_GPU but the installed onnxruntime offers only .*CPU"):
        session.create(config(), Path(), kind="GPU", device_id=0)


def test_the_servers_global_thread_pool_wins() -> None:
    server = {"intra_op_thread_count": "7", "inter_op_thread_count": "2"}
    made = session.options(config({"intra_op_thread_count": "3"}), kind="CPU", server=server)
    assert made.intra_op_num_threads == 3  # without the switch the server's counts say nothing
    made = session.options(
        config({"intra_op_thread_count": "3"}), kind="CPU", server=server | {"enable-global-threadpool": "1"}
    )
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (7, 2)


def test_session_and_run_entries() -> None:
    key = "session.use_device_allocator_for_initializers"
    assert session.options(config({key: "1"}), kind="CPU").get_session_config_entry(key) == "1"
    shrink = "memory.enable_memory_arena_shrinkage"
    assert session.run_options(config()) is None
    made = session.run_options(config({shrink: "cpu:0"}))
    assert made is not None
    assert made.get_run_config_entry(shrink) == "cpu:0"


def test_only_a_gpu_instance_may_spin() -> None:
    entry = "session.intra_op.allow_spinning"
    assert session.options(config(), kind="CPU").get_session_config_entry(entry) == "0"


def test_model_file(tmp_path: Path) -> None:
    """model.onnx, another name, or a directory of either name with model.onnx inside."""
    (tmp_path / "other.onnx").touch()
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "model.onnx").touch()
    with pytest.raises(ParameterError, match=r"unable to find '.*model.onnx' for model instance 'm'"):
        session.model_file(config(), tmp_path)
    assert session.model_file(config(default_model_filename="other.onnx"), tmp_path).name == "other.onnx"
    assert session.model_file(config(default_model_filename="split"), tmp_path) == tmp_path / "split" / "model.onnx"


def test_one_session_as_configured(tmp_path: Path) -> None:
    folder = lookup(tmp_path) / "1"
    opened = session.create(config(), folder, kind="MODEL", device_id=0)
    assert opened.get_providers() == ["CPUExecutionProvider"]
    assert [tensor.name for tensor in session.inspect(config(), folder).get_inputs()] == ["x"]


def test_a_missing_operator_library_is_named() -> None:
    libraries = {"op_library_filename": ["/nowhere/ops.so"]}
    with pytest.raises(
        ParameterError, match=r"model 'm': the custom operator library '/nowhere/ops.so' cannot be loaded"
    ):
        session.options(config(model_operations=libraries), kind="CPU")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_operator_library_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "ops.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "void *RegisterCustomOps(void *options, const void *api) {\n"
        '  FILE *seen = fopen(getenv("SEEN"), "w"); if (seen) fclose(seen); return NULL; }\n'
    )
    library, seen = tmp_path / "ops.so", tmp_path / "seen"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("SEEN", str(seen))
    session.options(config(model_operations={"op_library_filename": [str(library)]}), kind="CPU")
    assert seen.exists()
