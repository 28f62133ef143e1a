"""A repository of the picture pipeline with a classifier of choice in the place of resnet50."""

import io
import shutil
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import DataType

from export.repository import REPOSITORY, RepositoryError, config_file, model_folder, read_config, served_file

PIPELINE = ("image_preprocess", "image_postprocess", "image_classification", "image_classification_bls")
SLOT = "resnet50"
SIMULATED = "simulated_accelerator"
CLASSIFIERS = (SLOT, SIMULATED)
SKIPPED = shutil.ignore_patterns("__pycache__", "*.onnx")


def build(folder: Path, classifier: str, *, source: Path = REPOSITORY) -> Path:
    """Copy the pipeline into `folder` and put `classifier` where it expects resnet50.

    The simulated one keeps its model.py and its times; its configurations get the name, the inputs and the outputs of
    resnet50. Raises `RepositoryError` when resnet50 is asked for and not exported.
    """
    for model in PIPELINE:
        shutil.copytree(model_folder(model, source), folder / model, ignore=SKIPPED)
    if classifier == SLOT:
        graph = served_file(SLOT, source)
        if not graph.is_file():
            raise RepositoryError(f"{graph}: no such file, so it cannot be measured. Run: make export ARGS={SLOT}.")
        shutil.copytree(model_folder(SLOT, source), folder / SLOT, ignore=SKIPPED)
        (folder / SLOT / "1").mkdir(exist_ok=True)
        (folder / SLOT / "1" / graph.name).symlink_to(graph.resolve())
    else:
        shutil.copytree(model_folder(SIMULATED, source), folder / SLOT, ignore=SKIPPED)
        for variant in (None, "baseline", "dynamic", "dynamic_2_instances"):
            _rename(config_file(folder / SLOT, variant), config_file(model_folder(SLOT, source), variant))
    return folder


def _rename(path: Path, pattern: Path) -> None:
    config, wanted = read_config(path), read_config(pattern)
    config.name, config.max_batch_size = wanted.name, wanted.max_batch_size
    for tensors, others in ((config.input, wanted.input), (config.output, wanted.output)):
        del tensors[:]
        tensors.extend(others)
    assert config.input[0].data_type == DataType.Value("TYPE_FP32")
    path.write_text(text_format.MessageToString(config))


def pictures(count: int, *, width: int = 500, height: int = 375, seed: int = 0) -> list[bytes]:
    """JPEG files that compress like photographs (about 40 KB at 500 x 375): smooth colours with fine noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((width, height))
        noise = rng.normal(0, 6, (height, width, 3))
        pixels = (np.asarray(coarse, dtype=np.float64) + noise).clip(0, 255).astype(np.uint8)
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "JPEG", quality=85)
        made.append(content.getvalue())
    return made
