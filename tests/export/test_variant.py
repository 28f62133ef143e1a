"""Variants of small models: what is converted, proved, refused, replaced and kept."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import onnx_model

from export.graph.axis_proof import run, session_of
from export.repository import read_config
from export.variant.__main__ import main
from export.variant.precision import Conversion, prepared
from serve.doctor.__main__ import main as doctor
from triton_batching.terminal import Mistake

WIDTH, CLASSES = 16, 10
NUMBERS = {
    r"(memory after batches of \d, MiB) *([│|]) [\d.]+ *[│|] [\d.]+ *": r"\1 \2 N \2 N ",
    **{r"\d\.\d+e[+-]\d\d": "_ERROR_", r"\d+\.\d\d%": "PARTS%", r"[0-9a-f]{64}": "SHA-256"},
}


def weights(name: str, *shape: int, seed: int = 1) -> onnx.TensorProto:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def classifier(repository: Path) -> Path:
    """Two layers with a Relu between them, as torch's exporter writes them: transB, and value_info for the weights."""
    nodes = [
        helper.make_node("Gemm", ["x", "a"], ["inner"], name="first", transB=1),
        helper.make_node("Relu", ["inner"], ["positive"], name="relu"),
        helper.make_node("Gemm", ["positive", "b"], ["y"], name="second", transB=1),
    ]
    constants = [weights("a", 32, WIDTH), weights("b", CLASSES, 32, seed=2)]
    folder = onnx_model(repository, "classifier", nodes, dims=(WIDTH, CLASSES), initialisers=constants)
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


MASKED = """<ir_version: 8, opset_import: ["" : 17]> m (float["b",4] x, int64["b",4] mask) => (float["b",4] y)
<float one = {1}, float low = {-3.4e38}> {
    taken = Cast<to=1>(mask) left = Sub(one, taken) far = Mul(left, low) scores = Add(x, far)
    floor = Cast<to=7>(x) whole = Cast<to=1>(floor) parts = Softmax<axis=-1>(scores) y = Sub(parts, whole) }"""


def test_casts_keep_their_meaning_in_fp16() -> None:
    ready = prepared(onnx.parser.parse_model(MASKED), "fp16")
    conversion = Conversion(model=ready, precision="fp16", calibration={})
    mask = np.array([[1, 1, 0, 1], [1, 0, 0, 0]])
    rows = {"x": np.random.default_rng(1).uniform(-3, 3, (2, 4)).astype(np.float32), "mask": mask}
    expected, given = run(session_of(ready), rows)[0], run(conversion.session(conversion.converted()), rows)[0]
    np.testing.assert_allclose(given, expected, atol=2e-3)


def test_nodes_without_fp16_are_named_after_a_trial() -> None:
    text = MASKED[: MASKED.index("taken")] + "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"
    conversion = Conversion(model=prepared(onnx.parser.parse_model(text), "fp16"), precision="fp16", calibration={})
    with pytest.raises(Mistake, match=r"Type.*Leave in FP32 what cannot be: .*--keep q --keep y$"):
        conversion.converted()
    conversion.converted(["q", "y"])


@pytest.mark.slow
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
    files = ["--calibrate", str(small), "--samples", str(large), "--force"]
    made(tmp_path, "classifier", "--precision", "int8-static", *files, code=1)


def test_a_variant_is_replaced_only_by_force_and_keeps_configurations(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    made(tmp_path, "classifier", "--threads", "2")
    variant = tmp_path / "classifier_threads_2"
    (variant / "configs").mkdir()
    (variant / "configs" / "tuned.pbtxt").write_text((variant / "config.pbtxt").read_text())
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    made(tmp_path, "classifier", "--threads", "2", code=2)
    assert read_config(variant / "config.pbtxt").max_batch_size == 8
    made(tmp_path, "classifier", "--threads", "2", "--force")
    assert read_config(variant / "config.pbtxt").max_batch_size == 4
    assert read_config(variant / "configs" / "tuned.pbtxt").max_batch_size == 8


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


@pytest.mark.slow
def test_an_fp16_variant_has_half_weights_and_the_same_inputs_and_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    folder = classifier(tmp_path)
    (folder / "configs").mkdir()
    alone = (folder / "config.pbtxt").read_text().replace("dynamic_batching { }", "")
    (folder / "configs" / "alone.pbtxt").write_text(alone)
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
    shown = f"{capsys.readouterr().out}\n-- README.md\n{(variant / 'README.md').read_text()}"
    golden("export_variant", shown, masks=NUMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8-static", "int8-dynamic"])
def test_weights_are_converted(tmp_path: Path, precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = classifier(tmp_path)
    made(tmp_path, "classifier", "--precision", precision)
    file = tmp_path / f"classifier_{precision.replace('-', '_')}" / "1" / "model.onnx"
    assert types(folder / "1" / "model.onnx") == {TensorProto.FLOAT}
    assert types(file) & {TensorProto.FLOAT16, TensorProto.INT8}
    scales = {node.op_type for node in onnx.load(file).graph.node} & {"QuantizeLinear", "DynamicQuantizeLinear"}
    assert scales == {"int8-static": {"QuantizeLinear"}, "int8-dynamic": {"DynamicQuantizeLinear"}}.get(
        precision, set()
    )
    shared = "rows of a batch change each other's answers" in capsys.readouterr().out
    assert shared is (precision == "int8-dynamic")


@pytest.mark.slow
def test_a_variant_that_is_too_different_is_refused_with_its_errors_and_their_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[..., None]
) -> None:
    """By default rows are random; the CPU computes FP16 in FP32, and an overflow is seen all the same."""
    repository = tmp_path / "models"
    for build in (classifier, cancelling, overflowing):
        build(repository)
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(1).uniform(-1, 1, (20, WIDTH)).astype(np.float32))
    strict = ["classifier", "--precision", "int8-static", "--tolerance", "1e-9"]
    shown = ""
    for arguments in (
        strict,
        [*strict, "--samples", str(tmp_path / "rows.npz")],
        ["cancelling", "--precision", "fp16"],
        ["overflowing", "--precision", "fp16"],
    ):
        made(repository, *arguments, code=1)
        printed = capsys.readouterr()
        shown += f"$ {' '.join(arguments)}\n{printed.out}{printed.err}\n"
    # Which of two layers of INT8 is the worse one depends on the processor.
    layers = {r"(?<=nothing was written\. )(No node|node \"\w+\" \(Gemm\)).*?(?= It was| To accept)": "(the layers.)"}
    layers[r"--tolerance 0\.\d+$"] = "--tolerance _ERROR_"
    golden("export_variant_too_different", shown, masks=NUMBERS | layers)
    assert sorted(path.name for path in repository.iterdir()) == ["cancelling", "classifier", "overflowing"]
    made(repository, "cancelling", "--precision", "fp16", "--keep", "large")


def test_tensorrt_needs_the_sizes_of_open_dimensions_and_threads_are_a_parameter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = onnx_model(tmp_path, "open", [helper.make_node("Relu", ["x"], ["y"])], dims=(4, 4))
    model = onnx.load(folder / "1" / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "length"
    onnx.save(model, folder / "1" / "model.onnx")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 4 ]", "dims: [ -1 ]"))
    made(tmp_path, "open", "--accelerator", "tensorrt", code=2)
    assert "--open-dims lo:hi" in " ".join(capsys.readouterr().err.split())
    made(tmp_path, "open", "--accelerator", "tensorrt", "--open-dims", "4:64")
    made_config = read_config(tmp_path / "open_tensorrt" / "config.pbtxt")
    (accelerator,) = made_config.optimization.execution_accelerators.gpu_execution_accelerator
    shapes = [accelerator.parameters[f"trt_profile_{size}_shapes"] for size in ("min", "max")]
    assert shapes == ["x:1x4", "x:8x64"]
    made(tmp_path, "open", "--threads", "2")
    config = tmp_path / "open_threads_2" / "config.pbtxt"
    assert read_config(config).parameters["intra_op_thread_count"].string_value == "2"


WRONG = (
    "",
    "--accelerator tensorrt --precision int8-dynamic",
    "--accelerator tensorrt --open-dims 8:1",
    "--precision fp16 --calibrate rows.npz",
    "--precision fp16 --accelerator tensorrt --keep first",
    "--precision fp16 --keep nowhere",
    "--precision fp16 --open-dims 1:8",
    "--precision fp16 --samples missing.npz",
    "--precision fp16 --samples three.npz",
    "--precision int8-static --samples three.npz",
    "--precision int8-static --samples nan.npz",
    "--threads 2 --tolerance 0.1",
)
UNFIT = (
    'backend: "python"',
    "max_batch_size: 0",
    "instance_group [ { count: 1 kind: KIND_CPU } ]",
    "optimization { graph { level: 1 } }\ninstance_group [ { count: 1 } ]",
)


@pytest.mark.slow
def test_mistakes_are_named_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[..., None],
) -> None:
    """Options, samples that are too few or no numbers, variants of a variant, and models that cannot have one."""
    monkeypatch.chdir(tmp_path)
    repository = Path("models")
    config = classifier(repository) / "config.pbtxt"
    rows = np.random.default_rng(1).uniform(-1, 1, (20, WIDTH)).astype(np.float32)
    np.savez("three.npz", x=rows[:3])
    np.savez("four.npz", x=rows[:4])
    rows[4, 2] = np.nan
    np.savez("nan.npz", x=rows)
    shown = ""

    def refused(arguments: str, before: str = "") -> None:
        nonlocal shown
        made(repository, *arguments.split(), code=2)
        shown += f"{before}$ {arguments}\n{' '.join(capsys.readouterr().err.split())}\n\n"

    for options in WRONG:
        refused(f"classifier {options}".strip())
    original = config.read_text()
    for text in UNFIT:
        field = text.splitlines()[-1].split()[0]
        lines = [text if line.startswith(field) else line for line in original.splitlines()]
        config.write_text("\n".join(lines) + "\n")
        refused("classifier --accelerator tensorrt", f"{text}\n")
    config.write_text(original)
    assert [path.name for path in repository.iterdir()] == ["classifier"]
    for precision in ("int8-static", "fp16"):
        made(repository, "classifier", "--precision", precision, "--samples", "four.npz", "--tolerance", "1")
    capsys.readouterr()
    for arguments in ("classifier_int8_static --precision fp16", "classifier_fp16 --precision fp16"):
        refused(arguments)
    golden("export_variant_refused", shown)
    assert {path.name for path in repository.iterdir()} == {"classifier", "classifier_int8_static", "classifier_fp16"}


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """The largest file that may be written has 1,000 bytes; the variant's graph has more."""
    repository = tmp_path / "repository"
    classifier(repository)
    done = subprocess.run(
        [
            # Not `preexec_fn`: gRPC, which other tests use in this process, prints a line at a fork.
            *("prlimit", "--fsize=1000"),
            sys.executable,
            "-X",
            "pycache_prefix=/dev/null",
            "-m",
            "export.variant",
            "classifier",
            "--precision",
            "fp16",
            "--repository",
            str(repository),
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join(done.stderr.split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the model could not be written (File too large), and nothing was added" in said
    assert [path.name for path in tmp_path.rglob("*") if "classifier" not in str(path)] == ["repository"]
