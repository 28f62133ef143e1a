"""The doctor reads any repository, and ONNX files without weights; findings have a position, and no rule fails."""

import functools
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from doctor_examples import completed, write
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from padded_models import encoder

from export.graph.signature import SignatureError
from serve.doctor.__main__ import main
from serve.doctor.examination import examine
from serve.doctor.finding import Finding
from serve.doctor.fixes import changes
from serve.doctor.graph import Graph
from serve.doctor.render import FORMATS
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example
from serve.doctor.rules import all_rules
from serve.doctor.rules.ensembles import STEP_FILES, ensemble_text, step_text
from serve.doctor.wire import SMALL_BYTES, without_weights

NOBODY = 65534
WORDS = sorted(
    {word for rule in all_rules() if rule.bad is not None for word in (rule.bad.config or "").split()}
    | {"{", "}", "[", "]", ":", "<", ">", ",", ";", "-1", "0", "99999999999999999999", '"', "#", "\x00", "é"}
)


def findings(repository: Path) -> list[Finding]:
    """Every finding; each has a place, and no rule failed."""
    results = examine(Repository(path=repository), all_rules())
    for finding in results:
        assert finding.at.line >= 1
        assert finding.at.column >= 1
        assert "itself failed" not in finding.message, finding
    for render in FORMATS.values():
        assert isinstance(render(results), str)
    changes(Repository(path=repository), all_rules())
    return results


def folder(tmp_path: Path) -> Path:
    return write(Example("dynamic_batching { }"), tmp_path)


CONTENTS = {
    "binary": bytes(range(256)) * 40,
    "huge": bytes(100 * 1024 * 1024),
    "deep": b"input { " * 20000 + b"} " * 20000,
    "a deep list": b"input: " + b"[" * 100000,
    "an unknown enum": b"input { data_type: TYPE_FP33 }",
    "a huge number": b"max_batch_size: " + b"9" * 5000,
    "unclosed": b'name: "example',
}
PLACES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    **{
        kind: ("config.pbtxt", functools.partial(Path.write_bytes, data=data), "L001")
        for kind, data in CONTENTS.items()
    },
    "a folder": ("config.pbtxt", Path.mkdir, "L001"),
    "a loop": ("config.pbtxt", lambda path: path.symlink_to(path.name), "L001"),
    "a dangling link": ("config.pbtxt", lambda path: path.symlink_to("nowhere.pbtxt"), "L001"),
    "a pipe": ("config.pbtxt", os.mkfifo, "L001"),
    "a junk graph": ("1/model.onnx", lambda path: path.write_bytes(b"\x08\x07\xff\xff junk" * 100), ""),
    "a pipe for a graph": ("1/model.onnx", os.mkfifo, "L008"),
    "a loop of graphs": ("1/model.onnx", lambda path: path.symlink_to(path.name), "L008"),
    "a loop of versions": ("2", lambda path: path.symlink_to(path.name), ""),
    "configs is a file": ("configs", Path.touch, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_something_else_in_the_place_of_a_file_is_a_finding(kind: str, tmp_path: Path) -> None:
    name, make, code = PLACES[kind]
    path = folder(tmp_path) / name
    path.unlink(missing_ok=True)
    make(path)
    assert {code} - {""} <= {finding.code for finding in findings(tmp_path)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("name", ["config.pbtxt", "1", "."])
def test_missing_permissions_are_a_finding(name: str, tmp_path: Path) -> None:
    model = folder(tmp_path)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == "root" and parent.is_relative_to("/tmp/pytest-of-root"):
            parent.chmod(0o755)
    (model / name).chmod(0)
    os.seteuid(NOBODY)
    try:
        results = findings(tmp_path)
    finally:
        os.seteuid(0)
        (model / name).chmod(0o755)
    assert {"L001", "L008", "L004"} & {finding.code for finding in results}


@pytest.mark.parametrize(
    "source", ["def", "class TritonPythonModel:\n  x = (" + "(" * 5000, "\x00", "x = " + "-" * 99999]
)
def test_broken_python_is_no_traceback(source: str, tmp_path: Path) -> None:
    write(Example('backend: "python"', files={"1/model.py": source}), tmp_path)
    findings(tmp_path)


@pytest.mark.slow
def test_ensembles_may_be_long_and_nested(tmp_path: Path) -> None:
    """400 steps, each reads what the one before wrote, and 400 ensembles, each a step of the next one."""
    names = ["x", *(f"t{number}" for number in range(399)), "y"]
    steps = [step_text(inputs={"x": before}, outputs={"y": after}) for before, after in pairwise(names)]
    write(Example(ensemble_text(*steps), files=STEP_FILES), tmp_path)
    for number in range(400):
        inner = f"nested_{number - 1}" if number else "part"
        write(Example(ensemble_text(step_text(model=inner))), tmp_path, name=f"nested_{number}")
    rules = [rule for rule in all_rules() if rule.code[0] == "S"]
    assert examine(Repository(path=tmp_path), rules) == []


def test_a_model_py_with_tables_is_examined(tmp_path: Path) -> None:
    bad = RULES["M814"].bad
    assert bad is not None
    table = "TABLE = [\n" + f"    {'0' * 90!r},\n" * 12_000 + "]\n"
    write(Example(bad.config, files={"1/model.py": table + bad.files["1/model.py"]}), tmp_path)
    assert len(examine(Repository(path=tmp_path), [RULES["M814"]])) == 1


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"two\nlines", b"%0A::error::", b"\x1b[31m", "\u202e".encode(), b"'\"}{"]
)
def test_any_name_of_a_folder_can_be_printed(name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Example('name: "other"'), tmp_path, name=os.fsdecode(name))
    for form in FORMATS:
        assert main([str(tmp_path), "--format", form, "--select", "L003"]) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        out.encode()
    main([str(tmp_path), "--diff", "--fix", "--fail-on", "never"])
    findings(tmp_path)


QUICK = settings(max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


EXAMPLES = sorted(rule.code for rule in all_rules() if rule.bad is not None and rule.bad.config)


@QUICK
@given(code=st.sampled_from(EXAMPLES), data=st.data())
def test_examples_with_a_piece_missing(
    code: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = RULES[code].bad
    assert example is not None
    root = tmp_path_factory.mktemp("repository")
    path = write(example, root) / "config.pbtxt"
    text = completed(example.config or "")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    path.write_text(text[:start] + data.draw(st.sampled_from(WORDS)) + text[end:])
    findings(root)


@QUICK
@given(data=st.binary(max_size=200))
@example(data=b"8\0")  # a field with the number of the graph, cut short within it
def test_any_bytes_as_graph_source_or_configuration(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("repository")
    (folder(root) / "1" / "model.onnx").write_bytes(data)
    (write(Example(""), root, name="third") / "config.pbtxt").write_bytes(data)
    python = write(Example('backend: "python"'), root, name="second")
    (python / "1" / "model.py").write_bytes(data)
    findings(root)


DATA = ("float_data", "int32_data", "string_data", "int64_data", "raw_data", "double_data", "uint64_data")


def model(weights: list[TensorProto]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights))


@QUICK
@given(st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_only_the_weights_are_left_out(sizes: list[int], raw: bool) -> None:
    """Small tensors stay, since they are shapes and axes."""
    weights = [
        numpy_helper.from_array(np.arange(size, dtype=np.float32), f"w{index}")
        if raw
        else helper.make_tensor(f"w{index}", TensorProto.INT64, [size], list(range(size)))
        for index, size in enumerate(sizes)
    ]
    expected = model(weights)
    read = onnx.ModelProto.FromString(without_weights(memoryview(expected.SerializeToString())))
    for tensor in (tensor for tensor in expected.graph.initializer if tensor.ByteSize() > SMALL_BYTES):
        for name in DATA:
            tensor.ClearField(name)
    assert read == expected


@pytest.mark.parametrize("data", [b"", b"\x3a\x7f", b"not a model at all", b"\x08\x08"])
def test_a_file_that_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(SignatureError, match=r"model\.onnx"):
        Graph.read(path)


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime_padded"])
def test_a_model_whose_requests_are_padded_has_no_finding(backend: str, tmp_path: Path) -> None:
    """Its graph takes rows of one length and a mask that no client sends, in both names of the backend."""
    path = encoder(tmp_path, "m", backend=backend) / "config.pbtxt"
    codes = {finding.code for finding in examine(Repository(path=tmp_path), all_rules())}
    assert not codes & {"G101", "R305", "P501", "P502", "L004"}
    # By the name of the drop-in backend Triton makes one instance, not two.
    path.write_text(path.read_text().replace("count: 1 ", ""))
    found = examine(Repository(path=tmp_path), [RULES["I401"]])
    assert len(found) == (backend == "onnxruntime")
