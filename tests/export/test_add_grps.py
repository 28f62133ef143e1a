"""Many models from one file in grps' format: the repository, and the field that each error names."""

from pathlib import Path

import pytest
from added_graphs import graph, linear, texts, weights
from onnx import helper

from export.add import grps
from export.add.__main__ import main
from export.repository import read_config
from triton_batching.terminal import Mistake

TWO = """
models:
  - name: scores
    version: 1.0.0
    device: cpu
    inferer_type: onnx
    inferer_name: onnx_inferer
    inferer_path: scores.onnx
    inferer_args: {instances: 2}
    converter_type: none
    batching: {type: dynamic, max_batch_size: 8, batch_timeout_us: 1000}
  - name: texts
    version: 2
    device: original
    inferer_type: customized
    inferer_path: texts.onnx
    inferer_args:
      ranges: {mask: "0:1"}
    batching:
      type: none
      max_batch_size: 4
"""
ONE = """
models:
  - name: scores
    version: 1.0.0
    device: cpu
    inferer_type: onnx
    inferer_path: scores.onnx
    batching: {type: dynamic, max_batch_size: 8, batch_timeout_us: 1000}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    linear(tmp_path / "scores.onnx")
    texts(tmp_path / "texts.onnx")
    return tmp_path


def write_yaml(folder: Path, text: str) -> Path:
    (folder / "inference.yml").write_text(text)
    return folder / "inference.yml"


def test_each_model_gets_its_own_settings(folder: Path) -> None:
    assert main(["--yaml", str(write_yaml(folder, TWO)), "--repository", str(folder / "models")]) == 0
    scores, texts = (read_config(folder / "models" / name / "config.pbtxt") for name in ("scores", "texts"))
    assert (scores.max_batch_size, scores.dynamic_batching.max_queue_delay_microseconds) == (8, 1000)
    assert (scores.instance_group[0].count, scores.instance_group[0].kind) == (2, 2)  # KIND_CPU
    assert (texts.max_batch_size, texts.HasField("dynamic_batching")) == (4, False)
    assert (folder / "models" / "texts" / "2" / "model.onnx").is_file()


def test_one_wrong_model_leaves_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "texts.onnx").write_bytes(b"nothing")
    assert main(["--yaml", str(write_yaml(folder, TWO)), "--repository", str(folder / "models")]) == 2
    assert "texts.onnx: not a complete ONNX file" in capsys.readouterr().err
    assert list((folder / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("device", "kind", "gpus"),
    [("cpu", "cpu", ()), ("gpu", "gpu", ()), ("cuda:1", "gpu", (1,)), ("gpu:0", "gpu", (0,)), ("original", None, ())],
)
def test_devices_become_instance_kinds(device: str, kind: str | None, gpus: tuple[int, ...], folder: Path) -> None:
    (model,) = grps.read(write_yaml(folder, ONE.replace("device: cpu", f"device: {device}"))).models
    assert (model.kind, model.gpus) == (kind, gpus)


def test_no_batching_block_means_none(folder: Path) -> None:
    (model,) = grps.read(write_yaml(folder, "\n".join(ONE.splitlines()[:-1]))).models
    assert model.batching == "none"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_batch_size: 8", "max_batch_size: 0", r"batching.max_batch_size: 0 is not from 1"),
        ("max_batch_size: 8", "max_batch_size: many", r"batching.max_batch_size: 'many' is not a whole number"),
        ("timeout_us: 1000", "timeout_us: 1", r"batching.batch_timeout_us: 1 microseconds .0.001 ms"),
        ("timeout_us: 1000", "timeout_us: -1", r"batching.batch_timeout_us: -1 is not a time to wait"),
        ("type: dynamic", "type: static", r"batching.type: 'static' is not a kind of batching"),
        ("type: dynamic", "kind: dynamic", r"batching.kind: is not a field that Triton can serve"),
        ("name: scores", "name: a/b", r"name: 'a/b' cannot name a model"),
        ("name: scores", "label: scores", r"models\[0\].label: is not a field"),
        ("version: 1.0.0", "version: 1.2.0", r"version: 1.2.0: Triton's versions are whole numbers"),
        ("version: 1.0.0", "device: cpu", r"version: is missing"),
        ("device: cpu", "device: tpu", r"device: tpu is unknown"),
        ("device: cpu", "inp_device: cpu", r"inp_device: is not a field that Triton can serve"),
        ("inferer_type: onnx", "inferer_type: tensorrt", r"inferer_type: onnxruntime cannot serve tensorrt"),
        ("inferer_type: onnx", "inferer_type: tensorflow", r"serve tensorflow.* tf2onnx"),
        ("inferer_type: onnx", "inferer_type: jax", r"inferer_type: 'jax' is unknown"),
        ("inferer_type: onnx", "inferer_type: torch", r"inferer_path: scores.onnx is not what torch takes: FILE.pt2"),
        (
            "inferer_type: onnx",
            "inferer_type: onnx\n    converter_type: customized",
            r"converter_type: customized is code",
        ),
        ("inferer_type: onnx", "inferer_type: onnx\n    inferer_args: {streams: 2}", r"inferer_args.streams: is not a"),
        (
            "inferer_type: onnx",
            "inferer_type: onnx\n    inferer_args: {tolerance: much}",
            r"inferer_args.tolerance: much is not between 0 and 1",
        ),
        (
            "inferer_type: onnx",
            "inferer_type: onnx\n    inferer_args: {ranges: {x: 1:30}}",
            r"inferer_args.ranges.x: 90 is not a range of values. Write 'lo:hi' in quotation marks",
        ),
        ("models:", "server: {}\nmodels:", r"server: is not a field"),
        ("models:", "model:", r"models: is not a list of models"),
        ("models:", "models: [", r"not YAML"),
    ],
)
def test_mistakes_name_file_field_and_reason(old: str, new: str, message: str, folder: Path) -> None:
    with pytest.raises(Mistake, match=rf"inference\.yml: .*{message}"):
        grps.read(write_yaml(folder, ONE.replace(old, new, 1)))


def test_a_name_serves_one_model(folder: Path) -> None:
    twice = ONE + ONE.replace("models:\n", "").replace("1.0.0", "2.0.0")
    with pytest.raises(Mistake, match=r"models\[1\]\.name: models\[0\] has the name scores too"):
        grps.read(write_yaml(folder, twice))


DAG = """
dag:
  type: sequential
  name: chain
  nodes:
    - {name: one, type: model, model: scores-1.0.0}
    - {name: two, type: model, model: again-1.0.0}
"""


def chained(folder: Path, *, gives: int = 4) -> str:
    """Two models; the second takes the first one's output under another name."""
    for name, wide in (("scores", gives), ("again", 2)):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        graph(folder / f"{name}.onnx", nodes, gives=("batch", wide), constants=[weights(4, wide)])
    second = ONE.replace("models:\n", "").replace("scores", "again").replace("max_batch_size: 8", "max_batch_size: 4")
    return ONE + second + DAG


def test_a_sequential_dag_becomes_an_ensemble(folder: Path) -> None:
    path = write_yaml(folder, chained(folder))
    assert main(["--yaml", str(path), "--repository", str(folder / "models")]) == 0
    chain = read_config(folder / "models" / "chain" / "config.pbtxt")
    assert (chain.platform, chain.max_batch_size) == ("ensemble", 4)
    assert [step.model_name for step in chain.ensemble_scheduling.step] == ["scores", "again"]
    assert (list(chain.input[0].dims), list(chain.output[0].dims)) == ([4], [2])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: sequential", "type: parallel", r"dag.type: parallel is unknown"),
        ("name: chain", "name: scores", r"dag.name: scores is a model of this file"),
        ("model: again-1.0.0", "model: other-1.0.0", r"dag.nodes\[1\].model: other-1.0.0 is not in `models:`"),
        ("type: model, model: again", "type: splitter, model: again", r"dag.nodes\[1\].type: splitter is unknown"),
    ],
)
def test_a_dag_that_cannot_be_served_is_refused(old: str, new: str, message: str, folder: Path) -> None:
    with pytest.raises(Mistake, match=rf"inference\.yml: {message}"):
        grps.read(write_yaml(folder, chained(folder).replace(old, new, 1)))


def test_steps_that_do_not_fit_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_yaml(folder, chained(folder, gives=5))
    assert main(["--yaml", str(path), "--repository", str(folder / "models")]) == 2
    assert "dag: again takes x as FP32 [-1, 4], scores returns y as FP32 [-1, 5]" in capsys.readouterr().err
    assert list((folder / "models").iterdir()) == []
