"""Session options from config.pbtxt's parameters."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import session
from backend_inputs import config, refusals

CORES = len(os.sched_getaffinity(0))
INITIALIZERS, SHRINK = "session.use_device_allocator_for_initializers", "memory.enable_memory_arena_shrinkage"


def options(parameters: dict[str, str] | None = None, *, kind: str = "CPU", server: Any = None, **changes: Any) -> Any:
    return session.options(config(parameters, **changes), kind=kind, server=server)


@pytest.mark.parametrize(
    ("groups", "threads"),
    [([1], CORES), ([CORES], 1), ([1, 1], max(1, CORES // 2)), ([10 * CORES], 1), ([], CORES)],
)
def test_instances_share_the_cores(groups: list[int], threads: int) -> None:
    made = options(instance_group=[{"count": count} for count in groups])
    assert made.intra_op_num_threads == threads


def test_a_written_thread_count_wins_and_over_it_the_servers_global_thread_pool() -> None:
    own = {"intra_op_thread_count": "3", "inter_op_thread_count": "2"}
    server = {"intra_op_thread_count": "7", "inter_op_thread_count": "4"}
    made = [options(own), options(own, server=server), options(own, server=server | {"enable-global-threadpool": "1"})]
    assert [(one.intra_op_num_threads, one.inter_op_num_threads) for one in made] == [(3, 2), (3, 2), (7, 4)]


def test_options_are_read() -> None:
    """Of the memory, the graph, the execution mode, the session and the run."""
    for text, wanted in (("off", False), ("TRUE", True), ("0", False), ("1", True)):
        made = options({"enable_mem_arena": text, "enable_mem_pattern": text})
        assert (made.enable_cpu_mem_arena, made.enable_mem_pattern) == (wanted, wanted)
    for level, name in ((-1, "ENABLE_BASIC"), (1, "ENABLE_EXTENDED"), (2, "DISABLE_ALL"), (9, "ENABLE_ALL")):
        made = options(optimization={"graph": {"level": level}})
        assert made.graph_optimization_level.name == f"ORT_{name}"
    made = options({"execution_mode": "1", INITIALIZERS: "1"})
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert made.get_session_config_entry(INITIALIZERS) == "1"
    assert made.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session.run_options(config()) is None
    run = session.run_options(config({SHRINK: "cpu:0"}))
    assert run is not None
    assert run.get_run_config_entry(SHRINK) == "cpu:0"


def test_bad_values_are_named(golden: Callable[..., None], tmp_path: Path) -> None:
    values = {
        "execution_mode": ("2", "fast"),
        "enable_mem_arena": ("maybe",),
        "enable_mem_pattern": ("2",),
        "intra_op_thread_count": ("many", "3x"),
    }
    cases: dict[str, tuple[Any, ...]] = {f"{key}: {text}": ({key: text},) for key in values for text in values[key]}
    said = refusals(options, cases)
    missing = {"a model file that is not there": (config(), tmp_path)}
    golden("backend_session", said + refusals(session.model_file, missing))


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine has CUDA")
def test_a_gpu_instance_without_cuda_says_what_is_there() -> None:
    with pytest.raises(ValueError, match=r"KIND_GPU but the installed onnxruntime offers only .*CPU"):
        session.create(config(), Path(), kind="GPU", device_id=0)


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
    options(model_operations={"op_library_filename": [str(library)]})
    assert seen.exists()
    with pytest.raises(ValueError, match=r"the custom operator library '/nowhere/ops\.so' cannot be loaded"):
        options(model_operations={"op_library_filename": ["/nowhere/ops.so"]})
