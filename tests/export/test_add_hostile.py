"""`python -m export.add` with hostile or damaged files and full disks prints one line and leaves no files."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import FLOAT, INT64, Shape, graph, linear, numbers, texts, weights
from onnx import helper

from export.add.__main__ import main
from export.repository import faults, read_config

ROOT = Path(__file__).parents[2]


def refused(path: Path, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that is printed for a refused model; checks that no file of it is left."""
    assert main([str(path), "--name", "m", "--repository", str(folder / "models"), *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert not (folder / "models" / "m").exists()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    return line


def relu(path: Path, *, takes: Shape, gives: Shape | None = None) -> Path:
    return graph(path, [helper.make_node("Relu", ["x"], ["y"])], takes=takes, gives=gives or takes)


@pytest.mark.parametrize(
    ("takes", "message"),
    [
        (["batch", 2**62], "one request. Correct the shape"),
        (["batch", 2**31, 2**31], "at least 4.61e\\+18 elements"),
        ([2**62, 4], "which is at least .* elements"),
        (["batch", 10**9], "random values for 16 rows of it take 119 GiB, and the limit is 4"),
        (["batch", -5], "which no tensor can have"),
        (["batch", -1], "which no tensor can have"),
        (["batch", 0], "which no tensor can have"),
    ],
)
def test_a_shape_that_no_request_has_is_refused(
    takes: list[int | str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(relu(tmp_path / "m.onnx", takes=takes), tmp_path, capsys)
    assert re.search(message, line)
    assert 'input "x"' in line


def test_an_output_of_an_impossible_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(relu(tmp_path / "m.onnx", takes=["batch", "a"], gives=["batch", -7]), tmp_path, capsys)
    assert "output \"y\" has shape ['batch', -7], which no tensor can have" in line


def damaged(path: Path, kind: str) -> Path:
    model = onnx.load(linear(path))
    if kind == "no outputs":
        del model.graph.output[:]
    elif kind == "two inputs of one name":
        model.graph.input.append(model.graph.input[0])
    elif kind == "two outputs of one name":
        model.graph.output.append(model.graph.output[0])
    elif kind == "an input without a name":
        model.graph.input.append(helper.make_tensor_value_info("", FLOAT, ["batch", 4]))
    elif kind == "a line feed in a name":
        model.graph.input[0].name = model.graph.node[0].input[0] = "x\nmax_batch_size: 9"
    elif kind == "an input without a shape":
        model.graph.input[0].type.tensor_type.ClearField("shape")
    elif kind == "an opset of the future":
        model.opset_import[0].version = 999
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no outputs", "m.onnx: the graph has no outputs"),
        ("two inputs of one name", 'm.onnx: "x" names 2 inputs and outputs. Export'),
        ("two outputs of one name", 'm.onnx: "y" names 2 inputs and outputs. Export'),
        ("an input without a name", "m.onnx: a request cannot name the tensor ''. Export"),
        ("a line feed in a name", "m.onnx: a request cannot name the tensor 'x\\nmax_batch_size: 9'. Export"),
        ("an input without a shape", 'm.onnx: input "x" has no shape in the graph'),
        ("an opset of the future", "onnxruntime cannot load it ([ONNXRuntimeError] : 1 : FAIL : ONNX Runtime only"),
    ],
)
def test_a_graph_that_cannot_be_served_is_refused(
    kind: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(damaged(tmp_path / "m.onnx", kind), tmp_path, capsys)


def test_half_a_file_and_a_pointer_say_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = linear(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a complete ONNX file" in refused(path, tmp_path, capsys)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "a pointer of Git LFS, not the model itself. Fetch it: git lfs pull" in refused(path, tmp_path, capsys)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", "npy"])
def test_samples_that_are_no_archive_are_refused(
    content: bytes | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = tmp_path / "rows.npz"
    if isinstance(content, bytes):
        samples.write_bytes(content)
    else:
        with samples.open("wb") as file:
            np.save(file, np.zeros(3))
    line = refused(linear(tmp_path / "m.onnx"), tmp_path, capsys, "--samples", str(samples))
    assert "rows.npz: not a readable .npz file" in line


@pytest.mark.parametrize("bounds", ["0:1e30", "-1e300:0"])
def test_a_range_beyond_the_type_is_refused(bounds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(texts(tmp_path / "m.onnx"), tmp_path, capsys, "--range", f"tokens={bounds}")
    assert "input tokens is INT64, which holds -9223372036854775808 to 9223372036854775807" in line


def test_names_with_quotation_marks_are_served_under_them(tmp_path: Path) -> None:
    name, other = 'x"] } \\ é', "y'\"|"
    path = linear(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    model.graph.output[0].name = model.graph.node[0].output[0] = other
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch"\n'
    onnx.save(model, path)
    assert main([str(path), "--name", "m", "--repository", str(tmp_path / "models")]) == 0
    config = read_config(tmp_path / "models" / "m" / "config.pbtxt")
    assert (config.input[0].name, config.output[0].name) == (name, other)
    assert list(faults(tmp_path / "models")) == []


def test_text_of_the_graph_stays_in_its_comment(tmp_path: Path) -> None:
    """config.pbtxt names a table and a node in its comments."""
    hostile = "w\nmax_batch_size: 99\n#"
    nodes = [helper.make_node("Gather", [hostile, "x"], ["y"], name=hostile)]
    table = weights(20, 3)
    table.name = hostile
    path = graph(tmp_path / "m\nmax_batch_size: 98.onnx", nodes, takes=["batch"], takes_type=INT64, constants=[table])
    assert main([str(path), "--name", "m", "--repository", str(tmp_path / "models")]) == 0
    assert read_config(tmp_path / "models" / "m" / "config.pbtxt").max_batch_size == 16
    nodes.append(helper.make_node("Softmax", ["z"], ["y"], axis=0, name=hostile + "2"))
    nodes[0].output[0] = "z"
    path = graph(tmp_path / "n.onnx", nodes, takes=["batch"], takes_type=INT64, constants=[table])
    where = ["--repository", str(tmp_path / "models"), "--batching", "none"]
    assert main([str(path), "--name", "n", *where]) == 0
    assert read_config(tmp_path / "models" / "n" / "config.pbtxt").max_batch_size == 0


def test_20000_nodes_are_no_recursion(tmp_path: Path) -> None:
    """An index passes 5,000 nodes before its table, in a graph of 20,000 nodes."""
    nodes = [helper.make_node("Identity", [f"i{n}" if n else "x"], [f"i{n + 1}"]) for n in range(5000)]
    nodes.append(helper.make_node("Gather", ["w", "i5000"], ["v0"]))
    nodes += [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(15_000)]
    nodes.append(helper.make_node("Reshape", ["v15000", "flat"], ["y"]))
    constants = [weights(20, 3), numbers("flat", -1, 3)]
    path = graph(tmp_path / "m.onnx", nodes, takes=["batch"], takes_type=INT64, constants=constants)
    assert main([str(path), "--name", "m", "--repository", str(tmp_path / "models")]) == 0
    assert "index into" in (tmp_path / "models" / "m" / "config.pbtxt").read_text()


def large(path: Path) -> Path:
    """A model of 1 MB."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return graph(path, nodes, takes=["batch", 512], gives=["batch", 512], constants=[weights(512, 512)])


def program(path: Path, repository: Path, *, file_bytes: int | None = None, **environment: str) -> str:
    """The program's standard error, in its own process; its exit code must be 2."""

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "export.add", str(path), "--name", "m", "--repository", str(repository)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def test_a_limit_on_the_size_of_files_is_one_line(tmp_path: Path) -> None:
    line = program(large(tmp_path / "m.onnx"), tmp_path / "models", file_bytes=100_000)
    assert "the model could not be written (File too large), and nothing was added" in line
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "models"}
    assert list((tmp_path / "models").iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    path = large(tmp_path / "m.onnx")
    for line in (
        program(path, small_disk),
        program(path, small_disk / "models"),
        program(path, tmp_path / "models", TMPDIR=str(small_disk)),
    ):
        assert "the model could not be written (No space left on device), and nothing was added. Free some" in line
    assert {path.name for path in small_disk.rglob("*")} <= {"models", ".ses"}  # .ses is onnxruntime's
    assert list((tmp_path / "models").iterdir()) == []


def test_a_disk_that_cannot_be_written_to_is_one_line(small_disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for repository in (small_disk, small_disk / "models"):
        line = program(linear(tmp_path / "m.onnx"), repository)
        assert line == f"{repository}: cannot be written to (Read-only file system). Name another --repository."
