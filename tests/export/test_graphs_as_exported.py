"""Graphs as exporters write them: rows on other axes, rows baked in, outputs that are no tensors, names used twice."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from added_graphs import tried
from onnx import helper, numpy_helper

from export.add.__main__ import main
from export.graph import changed
from export.graph.batched import BatchAxisError
from export.graph.onnx_graph import save
from export.repository import read_config
from triton_batching.terminal import Failure

HEAD = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g '
# b: the declared first axis, k: the number of rows that the graph runs.
ONE_INPUT = {
    "class token": "(float[b,3,4] x) => (float[b,4,4] y) { y = Concat<axis=1>(token, x) }",
    "Tile": "(float[b,3,4] x) => (float[b,4,4] y) <float[1,1,4] one = {1,2,3,4}, int64[3] r = {k,1,1}>"
    " { c = Tile(one, r) y = Concat<axis=1>(c, x) }",
    "ConstantOfShape": "(float[b,3,4] x) => (float[b,3,6] y) <int64[3] s = {k,3,2}>"
    " { c = ConstantOfShape(s) y = Concat<axis=2>(c, x) }",
    "sum": "(float[b,3,4] x) => (float[b,3,4] y) <int64[3] s = {k,3,4}> { c = ConstantOfShape(s) y = Add(c, x) }",
    "Reshape": '(float[b,"t",4] x) => (float[b,"u",2] y) <int64[3] s = {k,-1,2}> { y = Reshape(x, s) }',
    "LSTM": "(float[b,3,4] x) => (float[b,2] y) <int64[3] s = {1,k,2}, int64[1] zero = {0}> { c = ConstantOfShape(s)"
    " time_first = Transpose<perm=[1,0,2]>(x) steps, last, cell = LSTM<hidden_size=2>(time_first, W, R, , , c, c)"
    " y = Squeeze(last, zero) }",
}
STATE = (
    "(float[b,5,6] x, float[1,b,7] h) => (float[b,5,7] y, float[1,b,7] hn) <int64[1] one = {1}> {"
    " xt = Transpose<perm=[1,0,2]>(x) yt, hn = GRU<hidden_size=7>(xt, W, R, , , h) ys = Squeeze(yt, one)"
    " y = Transpose<perm=[1,0,2]>(ys) }"
)


def written(path: Path, text: str, *, b: str = '"batch"', k: int = 1) -> Path:
    """The graph of a text; weights that it does not define are random."""
    model = onnx.parser.parse_model(
        HEAD + text.replace("[b,", f"[{b},").replace(",b,", f",{b},").replace("k,", f"{k},")
    )
    sizes = {"LSTM": {"W": (1, 8, 4), "R": (1, 8, 2)}, "GRU": {"W": (1, 21, 6), "R": (1, 21, 7)}}
    rng = np.random.default_rng(0)
    if "token" in text:
        model.graph.initializer.append(numpy_helper.from_array(np.full((k, 1, 4), 0.5, np.float32), "token"))
    for node in model.graph.node:
        for name, size in sizes.get(node.op_type, {}).items():
            model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("b", "k"), [('"batch"', 1), ("1", 1), ("2", 2)])
@pytest.mark.parametrize("kind", ONE_INPUT)
def test_a_graph_of_so_many_rows_takes_any(kind: str, b: str, k: int, tmp_path: Path) -> None:
    """Its answers to any rows are those of the file to the rows that it runs."""
    path = written(tmp_path / "m.onnx", ONE_INPUT[kind], b=b, k=k)
    proved = tried(path)
    assert b == '"batch"' or f'input "x": first axis {b} -> batch' in proved.changes
    save(proved.model, tmp_path / "made.onnx")
    original, made = (onnxruntime.InferenceSession(str(tmp_path / name)) for name in ("m.onnx", "made.onnx"))
    x = np.random.default_rng(1).normal(size=(6, 5 if kind == "Reshape" else 3, 4)).astype(np.float32)
    parts = [original.run(None, {"x": x[row : row + k]})[0] for row in range(0, 6, k)]
    np.testing.assert_allclose(made.run(None, {"x": x})[0], np.concatenate(parts), atol=1e-6)


@pytest.mark.parametrize("b", ['"batch"', "2", "1"])
def test_rows_on_another_axis_are_brought_first(b: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "m.onnx", STATE, b=b)
    made = tried(path)
    assert made.moved == tuple(
        f'{kind} "{name}" has its rows on axis 1 in the file: it is served as [rows, 1, 7]'
        for kind, name in (("input", "h"), ("output", "hn"))
    )
    save(made.model, tmp_path / "made.onnx")
    original, changed = (onnxruntime.InferenceSession(str(tmp_path / name)) for name in ("m.onnx", "made.onnx"))
    rng, rows = np.random.default_rng(1), int(b) if b.isdigit() else 3
    x, h = rng.normal(size=(rows, 5, 6)).astype(np.float32), rng.normal(size=(1, rows, 7)).astype(np.float32)
    y, hn = original.run(None, {"x": x, "h": h})
    given = changed.run(None, {"x": x, "h": h.swapaxes(0, 1)})
    np.testing.assert_allclose(given[0], y, atol=1e-6)
    np.testing.assert_allclose(given[1], hn.swapaxes(0, 1), atol=1e-6)


@pytest.mark.parametrize("b", ['"batch"', "2"])
def test_rows_that_are_taken_apart_are_named(b: str, tmp_path: Path) -> None:
    text = (
        "(float[b,6] x) => (float[b,6] y) <int64 i0 = {0}, int64 i1 = {1}, int64[1] ax = {0}> {"
        " a = Gather<axis=0>(x, i0) b = Gather<axis=0>(x, i1) p = Unsqueeze(a, ax) q = Unsqueeze(b, ax)"
        " y = Concat<axis=0>(p, q) }"
    )
    with pytest.raises(
        BatchAxisError, match=r"runs 2 rows at once and not 1, .*that makes b \(Gather\) picks rows out"
    ):
        tried(written(tmp_path / "m.onnx", text, b=b))


def test_a_graph_is_repaired_and_its_user_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    """What skl2onnx writes for texts and labels, a first axis of -1, and names that are used twice."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER", name="normalise"),
        helper.make_node("LabelEncoder", ["lower"], ["id"], domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[1]),
        helper.make_node("OneHot", ["id", "depth", "ends"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["by_class"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"]),
        helper.make_node("Identity", ["id"], ["text"]),
    ]
    constants = [numpy_helper.from_array(np.array(2), "depth")]
    constants.append(numpy_helper.from_array(np.array([0, 1], np.float32), "ends"))
    by_class = helper.make_value_info(
        "by_class", helper.make_sequence_type_proto(helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])))
    )
    label = helper.make_tensor_value_info("text", onnx.TensorProto.INT64, [-1])
    text = helper.make_tensor_value_info("text", onnx.TensorProto.STRING, [-1])
    graph = helper.make_graph(nodes, "m", [text], [label, by_class], constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), "m.onnx")
    assert main(["m.onnx", "--repository", "models"]) == 0
    golden("export_add_repaired", f"{capsys.readouterr().out}\n-- README.md\n{Path('models/m/README.md').read_text()}")
    outputs = read_config(Path("models/m/config.pbtxt")).output
    assert {tensor.name: list(tensor.dims) for tensor in outputs} == {"text_2": [1], "scores": [2]}


def test_a_graph_that_ends_onnxruntime_ends_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(written(tmp_path / "m.onnx", ONE_INPUT["sum"]))
    dying = "import os, signal; print(input(), flush=True); input(); os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(changed, "COMMAND", [sys.executable, "-c", dying])
    monkeypatch.setattr(changed, "_children", [])
    changed.guarded_session_of(model)
    with pytest.raises(changed.CrashError, match="ended by SIGSEGV"):
        changed.guarded_session_of(model)
    monkeypatch.setattr(changed, "COMMAND", [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"])
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "moved.onnx", STATE, b='"batch"')
    assert main(["moved.onnx", "--repository", "models", "--batching", "none"]) == 0
    monkeypatch.setattr(changed, "COMMAND", [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(Failure, match="ended with exit status 1"):
        changed.guarded_session_of(model)
