"""Variants of small models: what is converted, proved, refused, replaced and kept."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import onnx_model

from export.repository import read_config
from export.variant.__main__ import main
from export.variant.precision import Conversion, named
from serve.doctor.__main__ import main as doctor
from triton_batching.terminal import Mistake

WIDTH, CLASSES = 16, 10


def weights(name: str, *shape: int, seed: int = 1) -> onnx.TensorProto:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def classifier(repository: Path, **options: object) -> Path:
    """Two layers with a Relu between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["inner"], name="first"),
        helper.make_node("Relu", ["inner"], ["positive"], name="relu"),
        helper.make_node("MatMul", ["positive", "b"], ["y"], name="second"),
    ]
    constants = [weights("a", WIDTH, 32), weights("b", 32, CLASSES, seed=2)]
    return onnx_model(repository, "classifier", nodes, dims=(WIDTH, CLASSES), initialisers=constants, **options)  # type: ignore[arg-type]


def transposed(repository: Path) -> Path:
    """Two layers whose weights have declared shapes, and are transposed when they run."""
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["inner"], name="first", transB=1),
        helper.make_node("Gemm", ["inner", "b"], ["y"], name="second", transB=1),
    ]
    constants = [weights("a", 32, WIDTH), weights("b", CLASSES, 32, seed=2)]
    folder = onnx_model(repository, "transposed", nodes, dims=(WIDTH, CLASSES), initialisers=constants)
    model = onnx.load(folder / "1" / "model.onnx")
    for tensor in constants:
        model.graph.value_info.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
    onnx.save(model, folder / "1" / "model.onnx")
    return folder


def cancelling(repository: Path) -> Path:
    """The weights of the node `large` are near 1,000, where FP16 has steps of 0.5, and cancel but for small ones."""
    small = np.random.default_rng(1).standard_normal((WIDTH, CLASSES))
    rows = np.concatenate([small + 1000, np.full_like(small, -1000)]).astype(np.float32)
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], name="twice", axis=1),
        helper.make_node("MatMul", ["twice", "a"], ["y"], name="large"),
    ]
    constants = [numpy_helper.from_array(rows, "a")]
    return onnx_model(repository, "cancelling", nodes, dims=(WIDTH, CLASSES), initialisers=constants)


def overflowing(repository: Path) -> Path:
    """Between the nodes `large` and `back` values are above 65,504, the largest of FP16."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["inner"], name="first"),
        helper.make_node("Mul", ["inner", "up"], ["wide"], name="large"),
        helper.make_node("Mul", ["wide", "down"], ["y"], name="back"),
    ]
    constants = [weights("a", WIDTH, CLASSES)]
    constants += [
        numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("up", 6e4), ("down", 1e-3))
    ]
    return onnx_model(repository, "overflowing", nodes, dims=(WIDTH, CLASSES), initialisers=constants)


def made(repository: Path, *arguments: str, code: int = 0) -> None:
    assert main([*arguments, "--repository", str(repository)]) == code


def types(file: Path) -> set[int]:
    return {tensor.data_type for tensor in onnx.load(file).graph.initializer}


def test_an_fp16_variant_has_half_weights_and_the_same_inputs_and_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = classifier(tmp_path)
    (folder / "configs").mkdir()
    (folder / "configs" / "alone.pbtxt").write_text(
        (folder / "config.pbtxt").read_text().replace("dynamic_batching { }", "")
    )
    (folder / "labels.txt").write_text("a\n")
    made(tmp_path, "classifier", "--precision", "fp16")
    variant = tmp_path / "classifier_fp16"
    assert types(variant / "1" / "model.onnx") == {TensorProto.FLOAT16}
    before, after = (onnx.load(path / "1" / "model.onnx").graph for path in (folder, variant))
    assert list(before.input) == list(after.input)
    assert [value.type.tensor_type.elem_type for value in after.output] == [TensorProto.FLOAT]
    for name in ("config.pbtxt", "configs/alone.pbtxt"):
        config, original = read_config(variant / name), read_config(folder / name)
        assert config.name == "classifier_fp16"
        original.name = config.name
        assert config == original
    assert (variant / "labels.txt").read_text() == "a\n"
    assert doctor([str(variant), "--fail-on", "error"]) == 0
    shown = capsys.readouterr().out
    for words in ("classifier_fp16", "largest difference", "mean difference", "top-1 agrees", "memory at batch 8"):
        assert words in shown, shown
        assert words in (variant / "README.md").read_text()
    assert "batches of 1, 2, 3, 8 against their rows" in shown


def test_static_int8_quantises_both_layers_with_fixed_scales(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "int8-static")
    graph = onnx.load(tmp_path / "classifier_int8_static" / "1" / "model.onnx").graph
    operators = [node.op_type for node in graph.node]
    assert operators.count("MatMul") == 2
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators)
    assert TensorProto.INT8 in types(tmp_path / "classifier_int8_static" / "1" / "model.onnx")
    assert (folder / "1" / "model.onnx").is_file()


@pytest.mark.parametrize("precision", ["fp16", "int8-static", "int8-dynamic"])
def test_weights_whose_shapes_are_declared_are_converted(tmp_path: Path, precision: str) -> None:
    """As torch's exporter writes a layer: Gemm with transB, and value_info for its weights."""
    folder = transposed(tmp_path)
    made(tmp_path, "transposed", "--precision", precision)
    variant = tmp_path / f"transposed_{precision.replace('-', '_')}"
    assert TensorProto.FLOAT in types(folder / "1" / "model.onnx")
    assert types(variant / "1" / "model.onnx") & {TensorProto.FLOAT16, TensorProto.INT8}


def test_a_failed_conversion_advises_to_keep_no_node_that_is_not_named(tmp_path: Path) -> None:
    """Not prepared, the shapes of the weights stay declared, and the error names no node."""
    model = onnx.load(transposed(tmp_path) / "1" / "model.onnx")
    with pytest.raises(
        Mistake, match=r"cannot be converted to int8-dynamic .*\)\. Choose another --precision\."
    ) as refused:
        Conversion(model=model, precision="int8-dynamic", calibration={}).converted()
    assert "--keep" not in str(refused.value)


def test_a_node_that_an_error_names_is_found(tmp_path: Path) -> None:
    model = onnx.load(transposed(tmp_path) / "1" / "model.onnx")
    model.graph.initializer[1].CopyFrom(weights("b", CLASSES, 33, seed=2))
    del model.graph.value_info[:]
    with pytest.raises(onnx.shape_inference.InferenceError) as by_onnx:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    with pytest.raises(Exception, match="second") as by_onnxruntime:
        onnxruntime.InferenceSession(model.SerializeToString())
    assert named(model, str(by_onnx.value)) == named(model, str(by_onnxruntime.value)) == "second"
    model.graph.node[1].name = "sec"
    assert named(model, str(by_onnx.value)) is None


@pytest.mark.parametrize("drawn", [True, False])
def test_a_refusal_shows_all_errors_and_says_which_rows_were_compared(
    tmp_path: Path, drawn: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier(tmp_path / "models")
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(1).uniform(-1, 1, (20, WIDTH)).astype(np.float32))
    samples = [] if drawn else ["--samples", str(tmp_path / "rows.npz")]
    strict = ["--precision", "int8-static", "--tolerance", "1e-9", *samples]
    made(tmp_path / "models", "classifier", *strict, code=1)
    printed = capsys.readouterr()
    for words in ("largest difference", "mean difference", "top-1 agrees", "(limit 1e-09)"):
        assert words in printed.out, printed.out
    said = " ".join(printed.err.split())
    random = "It was compared and calibrated on random rows, which show little of real ones: give --samples FILE.npz."
    assert (random in said) is drawn
    assert "To accept it: --tolerance." in said


def test_rows_of_a_dynamic_variant_share_their_scales_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "int8-dynamic")
    assert "rows of a batch change each other's answers" in capsys.readouterr().out
    made(tmp_path, "classifier", "--precision", "int8-static")
    assert "rows of a batch change each other's answers" not in capsys.readouterr().out


def test_the_node_that_does_most_of_the_error_is_named_and_keeping_it_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelling(tmp_path)
    made(tmp_path, "cancelling", "--precision", "fp16", code=1)
    shown = " ".join(capsys.readouterr().err.split())
    assert 'node "large" (MatMul) does most of it' in shown
    assert "--keep 'large'" in shown
    assert "nothing was written" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cancelling"]
    made(tmp_path, "cancelling", "--precision", "fp16", "--keep", "large")


def test_an_overflow_of_fp16_is_seen_although_the_cpu_computes_in_fp32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overflowing(tmp_path)
    made(tmp_path, "overflowing", "--precision", "fp16", code=1)
    shown = " ".join(capsys.readouterr().err.split())
    assert "by up to inf of its largest value" in shown
    assert 'node "large" (Mul)' in shown


def test_an_error_above_the_tolerance_that_the_user_gives_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "int8-static", "--tolerance", "1e-6", code=1)
    assert "limit 1e-06" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "classifier_int8_static").exists()


def test_samples_are_split_between_calibration_and_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that calibrate are small, those that are compared are a hundred times larger, so they are cut off."""
    classifier(tmp_path)
    rows = np.random.default_rng(5).uniform(-1, 1, (40, WIDTH)).astype(np.float32)
    small, large = tmp_path.parent / "small.npz", tmp_path.parent / "large.npz"
    np.savez(small, x=rows)
    np.savez(large, x=100 * rows)
    made(tmp_path, "classifier", "--precision", "int8-static", "--calibrate", str(small))
    assert "random rows" not in capsys.readouterr().out
    files = ["--calibrate", str(small), "--samples", str(large)]
    made(tmp_path, "classifier", "--precision", "int8-static", *files, code=1)


def test_a_second_run_replaces_what_the_first_one_made_and_keeps_what_was_added(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "fp16")
    variant = tmp_path / "classifier_fp16"
    (variant / "configs").mkdir()
    (variant / "configs" / "tuned.pbtxt").write_text((variant / "config.pbtxt").read_text())
    (folder / "config.pbtxt").write_text(
        (folder / "config.pbtxt").read_text().replace("max_batch_size: 8", "max_batch_size: 4")
    )
    made(tmp_path, "classifier", "--precision", "fp16")
    assert read_config(variant / "config.pbtxt").max_batch_size == 4
    assert read_config(variant / "configs" / "tuned.pbtxt").max_batch_size == 8
    assert "configs/tuned.pbtxt" not in json.loads((variant / "variant.json").read_text())["files"]


def test_what_was_changed_or_made_by_others_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "fp16")
    config = tmp_path / "classifier_fp16" / "config.pbtxt"
    config.write_text(mine := config.read_text() + "# mine\n")
    made(tmp_path, "classifier", "--precision", "fp16", code=2)
    assert "config.pbtxt changed since" in " ".join(capsys.readouterr().err.split())
    assert config.read_text() == mine
    made(tmp_path, "classifier", "--precision", "fp16", "--force")
    assert config.read_text() != mine
    other = tmp_path / "classifier_int8_static"
    other.mkdir()
    (other / "config.pbtxt").write_text("# another model")
    made(tmp_path, "classifier", "--precision", "int8-static", code=2)
    assert "did not make it" in " ".join(capsys.readouterr().err.split())
    assert (other / "config.pbtxt").read_text() == "# another model"


def test_a_tensorrt_variant_has_a_cache_and_profiles_that_the_doctor_knows(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", "fp16", "--accelerator", "tensorrt", "--engine-cache", "/cache")
    variant = tmp_path / "classifier_fp16_tensorrt"
    (accelerator,) = read_config(variant / "config.pbtxt").optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP16"
    assert accelerator.parameters["trt_engine_cache_enable"] == "true"
    assert accelerator.parameters["trt_engine_cache_path"] == "/cache/classifier_fp16_tensorrt"
    profiles = [accelerator.parameters[f"trt_profile_{size}_shapes"] for size in ("min", "opt", "max")]
    assert profiles == ["x:1x16", "x:8x16", "x:8x16"]
    # TensorRT makes FP16 of the FP32 graph itself.
    assert (variant / "1" / "model.onnx").read_bytes() == (folder / "1" / "model.onnx").read_bytes()
    assert doctor([str(variant), "--fail-on", "warning"]) == 0


def test_tensorrt_needs_the_sizes_of_open_dimensions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = classifier(tmp_path)
    model = onnx.load(folder / "1" / "model.onnx")
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
    del model.graph.node[:], model.graph.initializer[:], model.graph.output[:]
    model.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))
    model.graph.output.append(value)
    onnx.save(model, folder / "1" / "model.onnx")
    config = folder / "config.pbtxt"
    config.write_text(
        config.read_text().replace("dims: [ 16 ]", "dims: [ -1 ]").replace("dims: [ 10 ]", "dims: [ -1 ]")
    )
    made(tmp_path, "classifier", "--accelerator", "tensorrt", code=2)
    assert "--open-dims lo:hi" in " ".join(capsys.readouterr().err.split())
    made(tmp_path, "classifier", "--accelerator", "tensorrt", "--open-dims", "4:64")
    made_config = read_config(tmp_path / "classifier_tensorrt" / "config.pbtxt")
    (accelerator,) = made_config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.parameters["trt_profile_min_shapes"] == "x:1x4"
    assert accelerator.parameters["trt_profile_max_shapes"] == "x:8x64"


def test_threads_are_a_parameter_of_a_variant(tmp_path: Path) -> None:
    classifier(tmp_path)
    made(tmp_path, "classifier", "--threads", "2")
    config = read_config(tmp_path / "classifier_threads_2" / "config.pbtxt")
    assert config.parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name what differs"),
        (["--accelerator", "openvino"], "--accelerator openvino: the installed onnxruntime"),
        (["--accelerator", "tensorrt", "--precision", "int8-dynamic"], "DynamicQuantizeLinear"),
        (["--precision", "fp16", "--calibrate", "rows.npz"], "--calibrate does nothing"),
        (["--precision", "fp16", "--accelerator", "tensorrt", "--keep", "first"], "--keep does nothing as TensorRT"),
        (["--threads", "2", "--tolerance", "0.1"], "--tolerance does nothing without --precision"),
        (["--precision", "fp16", "--keep", "nowhere"], "--keep nowhere: no such node"),
        (["--precision", "fp16", "--open-dims", "1:8"], "--open-dims does nothing"),
        (["--precision", "fp16", "--samples", "missing.npz"], "missing.npz: not a readable .npz file"),
        (["--accelerator", "tensorrt", "--open-dims", "8:1"], "--open-dims 8:1: not two sizes"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier(tmp_path)
    made(tmp_path, "classifier", *arguments, code=2)
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["classifier"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('backend: "python"', "is a model of python"),
        ("max_batch_size: 0", "has max_batch_size 0"),
        ("instance_group [ { count: 1 kind: KIND_CPU } ]", "every instance of classifier is of KIND_CPU"),
        ("optimization { graph { level: 1 } }\ninstance_group [ { count: 1 } ]", "has optimization already"),
    ],
)
def test_models_that_cannot_have_the_variant_are_refused(
    config: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = classifier(tmp_path) / "config.pbtxt"
    field = config.splitlines()[-1].split()[0]
    lines = [config if line.startswith(field) else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    made(tmp_path, "classifier", "--accelerator", "tensorrt", code=2)
    assert message in " ".join(capsys.readouterr().err.split())
