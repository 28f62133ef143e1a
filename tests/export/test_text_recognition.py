from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from export.models import alphabet, word_image
from export.models.text_recognition import TextRecogniser, build

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "export" / "weights" / "text_recognition.pth"

# The published layer table at width 512 for a 32 x 100 picture: channels, height, columns after each layer.


@pytest.fixture(scope="module")
def narrow() -> TextRecogniser:
    return build(64)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameters_are_those_of_the_published_model() -> None:
    model = TextRecogniser(512)
    assert parameters(model) == 44_282_885
    assert parameters(model.FeatureExtraction) == 44_263_904
    assert len(model.state_dict()) == 194


@pytest.mark.parametrize("width", [0, 8, 100, -16])
def test_width_must_be_a_multiple_of_16(width: int) -> None:
    with pytest.raises(ValueError, match="give a positive multiple of 16"):
        TextRecogniser(width)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_load_with_and_without_the_prefix(tmp_path: Path, prefix: str) -> None:
    saved = build(16, seed=7)
    file = tmp_path / "weights.pth"
    torch.save({prefix + name: tensor for name, tensor in saved.state_dict().items()}, file)
    loaded = build(16, file)
    assert not loaded.training
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_weights_of_another_width_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "narrow.pth"
    torch.save(build(16).state_dict(), file)
    with pytest.raises(ValueError, match="width") as error:
        build(32, file)
    assert str(error.value) == (
        f'{file}: tensor "FeatureExtraction.ConvNet.conv0_1.weight" has shape [1, 1, 3, 3], '
        "the model needs [2, 1, 3, 3]. "
        "This model has width 32: give the width that the file was trained with, or other weights."
    )


def test_files_without_a_state_dict_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    with pytest.raises(ValueError, match="no such file"):
        build(16, file)
    file.write_text("not weights at all")
    with pytest.raises(ValueError, match=r"weights\.pth: not a readable PyTorch state dict"):
        build(16, file)
    torch.save({"epoch": 3, "state_dict": build(16).state_dict()}, file)
    with pytest.raises(ValueError, match='a dictionary with the entries "epoch", "state_dict", not a state'):
        build(16, file)
    torch.save([1, 2, 3], file)
    with pytest.raises(ValueError, match="holds a list, not a state dict"):
        build(16, file)


@pytest.mark.parametrize("width", [word_image.WIDTH, None])
def test_trained_model_reads_the_sample_pictures(width: int | None) -> None:
    model = build(64, WEIGHTS)
    files = sorted((ROOT / "clients" / "pictures").glob("*.png"))
    assert len(files) >= 8
    for file in files:
        with torch.inference_mode():
            logits = model(torch.from_numpy(word_image.prepare(file, width)[np.newaxis]))
        assert alphabet.decode(logits.numpy()) == [file.stem]
