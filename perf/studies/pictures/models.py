"""A repository of the picture pipeline with another classifier in place of resnet50, and seeded pictures."""

import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tritonclient.grpc.model_config_pb2 import DataType

from export.repository import REPOSITORY, RepositoryError, config_file, model_folder, read_config, served_file

PIPELINE = ("image_preprocess", "image_postprocess", "image_classification", "image_classification_bls")
SLOT = "resnet50"
SIMULATED = "simulated_accelerator"
WIDE = "wide"
CLASSIFIERS = (SLOT, WIDE, SIMULATED)
# Widths of the wide classifier's layers: 25 million weights, which each execution reads once at any batch size.
LAYERS = (768, 8192, 2048, 1000)
SKIPPED = shutil.ignore_patterns("__pycache__", "*.onnx")


def build(folder: Path, classifier: str, *, source: Path = REPOSITORY) -> Path:
    """Copy the pipeline into `folder` and put `classifier` where it expects resnet50.

    `wide` is a real network for machines without a GPU: a mean over 14 x 14 pixels and three layers, bound by its
    100 MB of seeded weights. The simulated classifier has the name, the inputs and the outputs of resnet50 in its
    configurations. Raises `RepositoryError` if `classifier` is resnet50 and not exported.
    """
    for model in PIPELINE:
        shutil.copytree(model_folder(model, source), folder / model, ignore=SKIPPED)
    if classifier == SLOT:
        graph = served_file(SLOT, source)
        if not graph.is_file():
            raise RepositoryError(f"{graph}: no such file. Export the model: make export ARGS={SLOT}.")
        shutil.copytree(model_folder(SLOT, source), folder / SLOT, ignore=SKIPPED)
        (folder / SLOT / "1").mkdir(exist_ok=True)
        (folder / SLOT / "1" / graph.name).symlink_to(graph.resolve())
    elif classifier == WIDE:
        shutil.copytree(model_folder(SLOT, source), folder / SLOT, ignore=SKIPPED)
        (folder / SLOT / "1").mkdir(exist_ok=True)
        write_wide(folder / SLOT / "1" / "model.onnx")
    else:
        shutil.copytree(model_folder(SIMULATED, source), folder / SLOT, ignore=SKIPPED)
        for variant in (None, "baseline", "dynamic", "dynamic_2_instances"):
            _rename(config_file(folder / SLOT, variant), config_file(model_folder(SLOT, source), variant))
    return folder


def write_wide(path: Path) -> None:
    """The wide classifier with resnet50's input and output."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("AveragePool", ["input"], ["pooled"], kernel_shape=[14, 14], strides=[14, 14]),
        helper.make_node("Flatten", ["pooled"], ["hidden0"]),
    ]
    weights = []
    for layer, (wide, out) in enumerate(itertools.pairwise(LAYERS)):
        last = out == LAYERS[-1]
        values = rng.standard_normal((wide, out), dtype=np.float32) * np.float32((2 / wide) ** 0.5)
        weights.append(numpy_helper.from_array(values, f"weights{layer}"))
        nodes.append(
            helper.make_node("MatMul", [f"hidden{layer}", f"weights{layer}"], ["output" if last else f"sum{layer}"])
        )
        if not last:
            nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"hidden{layer + 1}"]))
    graph = helper.make_graph(
        nodes,
        WIDE,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", LAYERS[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _rename(path: Path, pattern: Path) -> None:
    """Give a configuration the name, the maximum batch size, the inputs and the outputs of `pattern`."""
    config, model = read_config(path), read_config(pattern)
    config.name, config.max_batch_size = model.name, model.max_batch_size
    for tensors, others in ((config.input, model.input), (config.output, model.output)):
        del tensors[:]
        tensors.extend(others)
    assert config.input[0].data_type == DataType.Value("TYPE_FP32")
    path.write_text(text_format.MessageToString(config))


def pictures(count: int, *, width: int = 500, height: int = 375, seed: int = 0) -> list[bytes]:
    """JPEG files that compress like photographs (about 40 KB at 500 x 375): smooth colours with fine noise."""
    rng = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((width, height))
        noise = rng.normal(0, 6, (height, width, 3))
        pixels = (np.asarray(coarse, dtype=np.float64) + noise).clip(0, 255).astype(np.uint8)
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "JPEG", quality=85)
        files.append(content.getvalue())
    return files
