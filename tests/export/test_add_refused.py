"""`python -m export.add` refuses wrong calls and damaged, hostile or odd files in one line, and leaves no files."""

import os
import shlex
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from added_graphs import FLOAT, INT64, graph, linear, numbers, texts, weights
from onnx import helper

from export.add.__main__ import main
from export.repository import faults, read_config

ROOT = Path(__file__).parents[2]
OPTIONS = (
    *("--batch-timeout-us 2", "--batch-timeout-us 2000000", "--batch-timeout-us 0", "--batch-timeout-us -5"),
    *("--max-batch-size 0", "--instances 0", "--tolerance 2", "--opset 0"),
    *("--name 'a b'", "--name ../up", "--name .hidden", "--name ''"),
    *("--range x=3", "--range x=3:1", "--range z=0:1", "--samples nowhere.npz"),
)
NO_MODELS = (
    *("nowhere.onnx", "'two words.onnx' --name 'a b'", "m.h5 --instances 2", "spaced\\ name.onnx"),
    *("weights.pth", "no_program.pt2", "package.pt2", "m.plan", "kept.h5", "noise.onnx", "half.onnx", "pointer.onnx"),
    *(".", ": --name q", "module: --name q", ":function --name q"),
)
SAMPLES = ("empty.npz", "cut.npz", "array.npz", "no_mask.npz", "floats.npz", "flat.npz", "one.npz")
SHAPES: dict[str, list[int | str]] = {
    "endless": ["batch", 2**62],
    "overflowing": ["batch", 2**31, 2**31],
    "endless_batch": [2**62, 4],
    "large": ["batch", 10**9],
    "nothing": ["batch", 0],
}
DAMAGE: dict[str, Callable[[onnx.ModelProto], object]] = {
    "no_outputs": lambda model: model.graph.output.pop(),
    "same_inputs": lambda model: model.graph.input.append(model.graph.input[0]),
    "no_name": lambda model: model.graph.input.append(helper.make_tensor_value_info("", FLOAT, ["batch", 4])),
    "line_feed": lambda model: rename(model, "x\nmax_batch_size: 9"),
    "no_shape": lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"),
    "future": lambda model: setattr(model.opset_import[0], "version", 999),
    "operator": lambda model: setattr(model.graph.node[0], "op_type", "Frobnicate"),
}


def code(arguments: list[str]) -> int | str | None:
    """The exit code of the program, which argparse ends for a wrong option."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def rename(model: onnx.ModelProto, name: str) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = name


def damaged(path: Path, damage: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(linear(path))
    damage(model)
    onnx.save(model, path)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls the program once for each line of arguments; the calls, and the line that each one printed."""
    monkeypatch.chdir(tmp_path)

    def call(*calls: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        said = []
        for arguments in calls:
            assert code([*shlex.split(arguments), "--repository", "models"]) == 2, arguments
            printed = capsys.readouterr()
            (line,) = printed.err.strip().splitlines()
            assert printed.out == ""
            said.append(f"$ {arguments}\n{line}\n")
        after = [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts]
        assert [path for path in after if path not in (*before, tmp_path / "models")] == []
        return "\n".join(said)

    return call


def test_wrong_options(refused: Callable[..., str], golden: Callable[..., None]) -> None:
    linear(Path("m.onnx"))
    golden("export_add_options", refused(*(f"m.onnx {options}" for options in OPTIONS)))


@pytest.mark.slow
def test_what_is_no_model(refused: Callable[..., str], golden: Callable[..., None]) -> None:
    linear(Path("spaced name.onnx"))
    for name in ("weights.pth", "kept.h5"):
        Path(name).touch()
    for name in ("noise.onnx", "no_program.pt2", "m.plan"):
        Path(name).write_bytes(b"nothing")
    Path("half.onnx").write_bytes(linear(Path("spaced name.onnx")).read_bytes()[:-20])
    Path("pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with zipfile.ZipFile("package.pt2", "w") as package:
        for name in ("archive_format", "data/aotinductor/model/model.so"):
            package.writestr(f"package/{name}", b"")
    golden("export_add_no_model", refused(*NO_MODELS))


def test_torch_script_and_factories(
    refused: Callable[..., str], golden: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "script.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), "state.pth")
    Path("needs_a_file.py").write_text("open('weights.npz')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("nowhere", "nothing", "unknown_input", "broken", "does_not_run")
    factories = ("no_such_module:make", "needs_a_file:make", *(f"added_modules:{name}" for name in names))
    said = refused("script.pt", "state.pth", *(f"{name} --name m" for name in factories))
    golden("export_add_factories", said, masks={r"\(TypeError.*|RuntimeError: mat1.*": "(...)"})


def test_graphs_that_cannot_be_served(refused: Callable[..., str], golden: Callable[..., None]) -> None:
    for name, shape in SHAPES.items():
        graph(Path(f"{name}.onnx"), [helper.make_node("Relu", ["x"], ["y"])], takes=shape, gives=shape)
    for name, damage in DAMAGE.items():
        damaged(Path(f"{name}.onnx"), damage)
    golden("export_add_graphs", refused(*(f"{name}.onnx" for name in (*SHAPES, *DAMAGE))))


def test_samples_and_ranges_that_do_not_fit(refused: Callable[..., str], golden: Callable[..., None]) -> None:
    texts(Path("texts.onnx"))
    rows = np.zeros((4, 5), dtype=np.int64)
    Path("empty.npz").touch()
    Path("cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with Path("array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    np.savez("no_mask.npz", tokens=rows)
    np.savez("floats.npz", tokens=rows * 1.0, mask=rows * 1.0)
    np.savez("flat.npz", tokens=rows[0], mask=rows[0])
    np.savez("one.npz", tokens=rows[:1], mask=rows[:1])
    options = [*(f"--samples {name}" for name in SAMPLES), "--range tokens=0:1e30", "--range tokens=-1e300:0"]
    golden("export_add_samples", refused(*(f"texts.onnx {each}" for each in options)))


def test_names_with_quotation_marks_are_served_under_them(tmp_path: Path) -> None:
    name, other = 'x"] } \\ é', "y'\"|"
    path = linear(tmp_path / "m.onnx")
    model = onnx.load(path)
    rename(model, name)
    model.graph.output[0].name = model.graph.node[0].output[0] = other
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch"\n'
    onnx.save(model, path)
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    config = read_config(tmp_path / "models" / "m" / "config.pbtxt")
    assert (config.input[0].name, config.output[0].name) == (name, other)
    assert list(faults(tmp_path / "models")) == []


def test_text_of_the_graph_stays_in_its_comment(tmp_path: Path) -> None:
    """config.pbtxt names a table and a node in its comments."""
    hostile = "w\nmax_batch_size: 99\n#"
    table = weights(20, 3)
    table.name = hostile
    nodes = [helper.make_node("Gather", [hostile, "x"], ["y"], name=hostile)]
    for more, options, size in (([], [], 16), (["Softmax"], ["--batching", "none"], 0)):
        if more:
            nodes[0].output[0] = "z"
            nodes.append(helper.make_node("Softmax", ["z"], ["y"], axis=0, name=hostile + "2"))
        path = tmp_path / "m\nmax_batch_size: 98.onnx"
        graph(path, nodes, takes=["batch"], takes_type=INT64, constants=[table])
        assert main([str(path), "--name", "m", "--repository", str(tmp_path / "models"), "--force", *options]) == 0
        assert read_config(tmp_path / "models" / "m" / "config.pbtxt").max_batch_size == size


def test_3000_nodes_are_no_recursion(tmp_path: Path) -> None:
    """An index passes 1,500 nodes before its table; Python's limit is 1,000 calls."""
    nodes = [helper.make_node("Identity", [f"i{n}" if n else "x"], [f"i{n + 1}"]) for n in range(1500)]
    nodes.append(helper.make_node("Gather", ["w", "i1500"], ["v0"]))
    nodes += [helper.make_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(1500)]
    nodes.append(helper.make_node("Reshape", ["v1500", "flat"], ["y"]))
    constants = [weights(20, 3), numbers("flat", -1, 3)]
    path = graph(tmp_path / "m.onnx", nodes, takes=["batch"], takes_type=INT64, constants=constants)
    assert main([str(path), "--repository", str(tmp_path / "models")]) == 0
    assert "index into" in (tmp_path / "models" / "m" / "config.pbtxt").read_text()


def large(path: Path) -> Path:
    """A model of 1 MB."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return graph(path, nodes, takes=["batch", 512], gives=["batch", 512], constants=[weights(512, 512)])


def program(path: Path, repository: Path, *, file_bytes: int | None = None, **environment: str) -> str:
    """The program's standard error, in its own process; its exit code must be 2.

    It keeps no compiled files: cut off by the limit, these would break every later start of Python.
    """

    # Not `preexec_fn`: gRPC, which other tests use in this process, prints a line at a fork.
    limit = ["prlimit", f"--fsize={file_bytes}"] if file_bytes else []
    command = [*limit, sys.executable, "-X", "pycache_prefix=/dev/null", "-m", "export.add", str(path)]
    command += ["--name", "m", "--repository", str(repository)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_one_line(tmp_path: Path) -> None:
    line = program(large(tmp_path / "m.onnx"), tmp_path / "models", file_bytes=100_000)
    assert "the model could not be written (File too large), and nothing was added" in line
    assert {path.name for path in tmp_path.rglob("*")} == {"m.onnx", "models"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    path = large(tmp_path / "m.onnx")
    for line in (program(path, small_disk), program(path, tmp_path / "models", TMPDIR=str(small_disk))):
        assert "the model could not be written (No space left on device), and nothing was added. Free some" in line
    assert {path.name for path in small_disk.rglob("*")} <= {"models", ".ses"}  # .ses is onnxruntime's
    assert list((tmp_path / "models").iterdir()) == []
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    line = program(linear(path), small_disk / "models")
    assert line == f"{small_disk / 'models'}: cannot be written to (Read-only file system). Name another --repository."
