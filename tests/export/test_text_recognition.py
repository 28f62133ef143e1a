from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.models import alphabet, word_image
from export.models.text_recognition import TextRecogniser, build
from export.variant.trial_rows import word_pictures

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "export" / "weights" / "text_recognition.pth"

# The published layer table at width 512 for a 32 x 100 picture: channels, height, columns after each layer.
SHAPES_512 = {
    "conv0_1": (32, 32, 100),
    "conv0_2": (64, 32, 100),
    "maxpool1": (64, 16, 50),
    "layer1": (128, 16, 50),
    "conv1": (128, 16, 50),
    "maxpool2": (128, 8, 25),
    "layer2": (256, 8, 25),
    "conv2": (256, 8, 25),
    "maxpool3": (256, 4, 26),
    "layer3": (512, 4, 26),
    "conv3": (512, 4, 26),
    "layer4": (512, 4, 26),
    "conv4_1": (512, 2, 27),
    "conv4_2": (512, 1, 26),
}


@pytest.fixture(scope="module")
def narrow() -> TextRecogniser:
    return build(64)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_layers_have_the_published_shapes() -> None:
    model = build()
    seen: dict[str, tuple[int, ...]] = {}
    for name, layer in model.FeatureExtraction.ConvNet.named_children():

        def note(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            seen[name] = tuple(output.shape[1:])

        layer.register_forward_hook(note)
    with torch.inference_mode():
        assert model(torch.zeros(1, 1, 32, 100)).shape == (1, 26, 37)
    assert {name: seen[name] for name in SHAPES_512} == SHAPES_512


def test_parameters_are_those_of_the_published_model() -> None:
    model = TextRecogniser(512)
    assert parameters(model) == 44_282_885
    assert parameters(model.FeatureExtraction) == 44_263_904
    assert len(model.state_dict()) == 194


@pytest.mark.parametrize(("width", "count"), [(128, 2_775_965), (64, 696_769), (32, 175_595)])
def test_parameters_of_narrow_models(width: int, count: int) -> None:
    assert parameters(TextRecogniser(width)) == count


def test_names_are_those_of_the_published_model() -> None:
    names = set(TextRecogniser(16).state_dict())
    assert {
        "FeatureExtraction.ConvNet.conv0_1.weight",
        "FeatureExtraction.ConvNet.bn0_2.running_var",
        "FeatureExtraction.ConvNet.layer1.0.downsample.0.weight",
        "FeatureExtraction.ConvNet.layer2.0.downsample.1.num_batches_tracked",
        "FeatureExtraction.ConvNet.layer3.4.conv2.weight",
        "FeatureExtraction.ConvNet.layer4.2.bn2.bias",
        "FeatureExtraction.ConvNet.bn4_2.running_mean",
        "Prediction.bias",
    } < names
    assert not [name for name in names if "layer4.0.downsample" in name]


@pytest.mark.parametrize(
    ("columns", "steps"), [(8, 3), (32, 9), (33, 9), (64, 17), (100, 26), (128, 33), (200, 51), (203, 51)]
)
def test_a_step_every_4_columns(narrow: TextRecogniser, columns: int, steps: int) -> None:
    with torch.inference_mode():
        assert narrow(torch.zeros(2, 1, 32, columns)).shape == (2, steps, 37)


def test_rows_of_a_batch_do_not_influence_each_other(narrow: TextRecogniser) -> None:
    pictures = torch.rand(3, 1, 32, 100, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        together = narrow(pictures)
        alone = torch.cat([narrow(picture[None]) for picture in pictures])
    assert (together[0] - together[1]).abs().max() > 0.1
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)


def test_torch_export_keeps_the_batch_axis_dynamic(narrow: TextRecogniser) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(narrow, (torch.zeros(2, 1, 32, 100),), dynamic_shapes={"pictures": {0: batch}})
    for rows in (1, 5):
        pictures = torch.rand(rows, 1, 32, 100)
        torch.testing.assert_close(program.module()(pictures), narrow(pictures), rtol=0, atol=1e-4)


def test_seed_decides_the_random_weights() -> None:
    first, same, other = build(16, seed=1), build(16, seed=1), build(16, seed=2)
    assert not first.training
    assert torch.equal(first.Prediction.weight, same.Prediction.weight)
    assert not torch.equal(first.Prediction.weight, other.Prediction.weight)


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


def test_weights_without_batch_counters_load(tmp_path: Path) -> None:
    file = tmp_path / "old.pth"
    state = build(16).state_dict()
    torch.save({name: tensor for name, tensor in state.items() if "num_batches" not in name}, file)
    build(16, file)


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


def test_missing_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    state = build(16).state_dict()
    file = tmp_path / "weights.pth"
    torch.save({name: tensor for name, tensor in state.items() if name != "Prediction.bias"}, file)
    with pytest.raises(ValueError, match=r'"Prediction\.bias" is missing: the model needs shape \[37\]'):
        build(16, file)
    torch.save({**state, "Attention.weight": torch.zeros(2, 3)}, file)
    with pytest.raises(ValueError, match=r'"Attention\.weight" of shape \[2, 3\] is not used'):
        build(16, file)


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


def test_trained_model_reads_words_it_has_not_seen() -> None:
    pictures, words = word_pictures()
    with torch.inference_mode():
        logits = build(64, WEIGHTS)(torch.from_numpy(word_image.scale(pictures[:, np.newaxis])))
    right = sum(answer == word for answer, word in zip(alphabet.decode(logits.numpy()), words, strict=True))
    assert right / len(words) >= 0.95


@pytest.mark.parametrize("width", [word_image.WIDTH, None])
def test_trained_model_reads_the_sample_pictures(width: int | None) -> None:
    model = build(64, WEIGHTS)
    files = sorted((ROOT / "clients" / "pictures").glob("*.png"))
    assert len(files) >= 8
    for file in files:
        with torch.inference_mode():
            logits = model(torch.from_numpy(word_image.prepare(file, width)[np.newaxis]))
        assert alphabet.decode(logits.numpy()) == [file.stem]
