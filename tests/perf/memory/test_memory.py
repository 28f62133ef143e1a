"""The memory of an instance: measured in a process of its own, kept on record, and that of the serving process."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from bench import Bench
from onnx import helper, numpy_helper
from streams import Stream
from tiny_models import onnx_model, python_model

from perf.memory.__main__ import main
from perf.memory.measured import Instance, reason
from perf.records.size_mix import SizeMix
from serve import stubs
from triton_batching.terminal import Failure

MAPPED = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
agraph (float[b, 2] x) => (seq(map(int64, float)) z) { z = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1]>(x) }"""
MIB = 2**20
ITEMS = 2**18
"""One MiB of floats."""


def doubled(repository: Path, name: str = "doubled", config: str = "dynamic_batching { }") -> Path:
    """y = x @ w + x for rows of 1 MiB, with 8 MiB of weights that are only read."""
    big = numpy_helper.from_array(np.ones((8, ITEMS), dtype=np.float32), "w")
    nodes = [
        helper.make_node("ReduceMax", ["w"], ["row"], axes=[0], keepdims=1),
        helper.make_node("Mul", ["x", "row"], ["z"]),
        helper.make_node("Sum", ["x", "z"], ["y"]),
    ]
    return onnx_model(repository, name, nodes, dims=(ITEMS, ITEMS), initialisers=[big], config=config)


@pytest.mark.slow
def test_a_batch_takes_at_least_its_floor_and_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = doubled(tmp_path / "models")
    instance = Instance.of("doubled", repository=tmp_path / "models")
    record = instance.measured([1, 16], tmp_path)
    # The input by way of shared memory, its copy, the joined batch, and the output there and back.
    assert 16 * 4 * MIB < record.sizes[16].peak - record.sizes[1].peak < 16 * 12 * MIB
    assert list(record.sizes) == [1, 2, 4, 8, 16]
    assert record.sizes[16].held <= record.sizes[16].peak
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert instance.measured([4], tmp_path) == record
    # How requests are batched changes nothing, but how the model runs does.
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dynamic_batching { }", "").replace("size: 8", "size: 4"))
    assert Instance.of("doubled", repository=tmp_path / "models").measured([4], tmp_path) == record
    config.write_text(config.read_text() + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }')
    with pytest.raises(FileNotFoundError):
        Instance.of("doubled", repository=tmp_path / "models").measured([4], tmp_path)


@pytest.mark.slow
def test_the_longest_requests_of_a_mix_count(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sum", ["x", "x"], ["y"])]
    folder = onnx_model(tmp_path, "open", nodes, dims=(-1, -1))
    held = {
        sizes: Instance.of("open", mix=SizeMix(text=sizes), repository=tmp_path).measured([8], tmp_path / "records")
        for sizes in ("100", f"100,{ITEMS}")
    }
    short, long = held.values()
    assert (short.length, long.length) == (100, ITEMS)
    assert long.sizes[8].peak - short.sizes[8].peak > 8 * 4 * MIB
    assert folder.is_dir()


@pytest.mark.parametrize("left_out", ["input", "output", "(?:in|out)put", "name"])
def test_what_a_configuration_leaves_out_is_completed(tmp_path: Path, left_out: str) -> None:
    config = doubled(tmp_path) / "config.pbtxt"
    whole = Instance.of("doubled", repository=tmp_path)
    config.write_text(re.sub(rf"(?m)^{left_out}\b.*", "", config.read_text()))
    assert Instance.of("doubled", repository=tmp_path) == whole


def test_a_model_that_fails_says_at_which_batch_and_why(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([3, -1], dtype=np.int64), "shape")
    onnx_model(tmp_path, "odd", [helper.make_node("Reshape", ["x", "shape"], ["y"])], dims=(4, 4), initialisers=[shape])
    with pytest.raises(Failure, match=r"'odd': its memory at batch 1 cannot be measured: .*Reshape"):
        Instance.of("odd", repository=tmp_path).measured([1], tmp_path / "records")
    assert "lack of memory" in reason(-9, "its last words")


@pytest.mark.slow
def test_what_is_printed_and_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    models, said = tmp_path / "models", []
    doubled(models)
    single = onnx_model(models, "single", [helper.make_node("Identity", ["x"], ["y"])], dims=(1, 1), max_batch_size=0)
    (single / "config.pbtxt").write_text((single / "config.pbtxt").read_text().replace("[ 1 ]", "[ 1, 1 ]"))
    files = {"GRAPH": str(models / "doubled" / "1" / "model.onnx"), "MAPPED": str(tmp_path / "mapped.onnx")}
    onnx.save(onnx.parser.parse_model(MAPPED), files["MAPPED"])

    def run(words: str, status: int) -> None:
        arguments = [files.get(word, word) for word in words.split()]
        assert main([*arguments, "--repository", str(models), "--results", str(tmp_path / "records")]) == status, words
        said.append(f"$ memory {words}\n{''.join(capsys.readouterr())}")

    run("doubled --batch 1,8", 0)
    run("GRAPH --batch 2", 0)
    run("single", 0)
    for words in (
        "no_such_model",
        "no_such.onnx",
        "doubled --batch 0",
        "doubled --batch 1,,2",
        "doubled --batch 65537",
        "doubled --mix 8:64",
        "single --batch 2",
        "MAPPED --batch 1",
    ):
        run(words, 2)
    golden("memory", "".join(said), masks={r"\d+\.\d": "N", " +N": " N", "[━─┃┏┓┗┛┡┩└┘┳┴╇│]+": "|"})
    assert (
        main(["doubled", "--repository", str(models), "--results", str(tmp_path / "records"), "--format", "json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert [line["batch"] for line in told["batches"]] == [1, 8, 32]
    assert all(line["floor"] < line["held"] <= line["peak"] for line in told["batches"])
    assert told["batches"][0]["weights"] == 8 * MIB


@pytest.mark.server
def test_it_is_the_memory_of_the_serving_process(bench: Bench, tmp_path: Path) -> None:
    """Within 5 % of the process's peak, above a process that has onnxruntime and no model.

    Its tensors are large inside only, because the kernel counts what a stub shares with the server several times.
    """
    repeats = numpy_helper.from_array(np.array([1, ITEMS // 1024], dtype=np.int64), "repeats")
    nodes = [
        helper.make_node("Tile", ["x", "repeats"], ["t"]),
        helper.make_node("Sum", ["t", "t"], ["s"]),
        helper.make_node("ReduceMax", ["s"], ["y"], axes=[1]),
    ]
    batching = "dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    onnx_model(tmp_path, "wide", nodes, dims=(1024, 1), initialisers=[repeats], config=batching, max_batch_size=32)
    answer = "pb_utils.InferenceResponse([pb_utils.Tensor('y', request.inputs()[0].as_numpy())])"
    python_model(tmp_path, "empty", f"import onnxruntime; return [{answer} for request in requests]")
    rows = [{"x": np.ones((1, 1024), dtype=np.float32)}] * 32
    with bench.serving(("wide", "empty"), tmp_path) as server, Stream(server.grpc_url) as stream:
        pids = {model: pid for pid, model in stubs.instances(server.shared_memory_prefix).items()}
        for _ in range(3):
            stream.send("wide", rows)
        stream.send("empty", [{"x": np.ones((1, 1), dtype=np.float32)}])
        full, empty = peak(pids["wide"]), peak(pids["empty"])
    size = Instance.of("wide", repository=tmp_path).measured([32], tmp_path / "records").sizes[32]
    assert full - empty > 64 * MIB
    assert size.peak == pytest.approx(full - empty, abs=0.05 * full)


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
def test_what_loading_frees_is_returned(tmp_path: Path) -> None:
    """onnxruntime reads all weights and copies them; glibc would keep the room between the copies."""
    weights = [
        numpy_helper.from_array(np.full((1024, 1024), number, dtype=np.float32), f"w{number}") for number in range(24)
    ]
    steps = [helper.make_node("MatMul", [f"t{n}" if n else "x", f"w{n}"], [f"t{n + 1}"]) for n in range(24)]
    steps[-1].output[0] = "y"
    onnx_model(tmp_path, "deep", steps, dims=(1024, 1024), initialisers=weights)
    size = Instance.of("deep", repository=tmp_path).measured([1], tmp_path / "records").sizes[1]
    assert 96 * MIB < size.held < 1.4 * 96 * MIB
    assert size.peak < 2.4 * 96 * MIB
