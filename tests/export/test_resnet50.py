from pathlib import Path

import pytest
import torch
from torch import nn

from export.models import resnet50


@pytest.fixture(scope="module")
def model() -> resnet50.ResNet50:
    return resnet50.build(seed=0)


def test_parameters_are_those_of_torchvision(model: resnet50.ResNet50) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    state = model.state_dict()
    assert len(state) == 320
    shapes = {
        "conv1.weight": [64, 3, 7, 7],
        "bn1.num_batches_tracked": [],
        "layer1.0.downsample.0.weight": [256, 64, 1, 1],
        "layer2.0.conv2.weight": [128, 128, 3, 3],
        "layer3.5.bn3.running_var": [1024],
        "layer4.0.downsample.1.bias": [2048],
        "layer4.2.conv3.weight": [2048, 512, 1, 1],
        "fc.weight": [1000, 2048],
        "fc.bias": [1000],
    }
    assert {name: list(state[name].shape) for name in shapes} == shapes


def test_the_3x3_convolution_has_the_stride(model: resnet50.ResNet50) -> None:
    strided = {name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)}
    stages = ("layer2", "layer3", "layer4")
    assert strided == {
        "conv1",
        *(f"{stage}.0.conv2" for stage in stages),
        *(f"{stage}.0.downsample.0" for stage in stages),
    }


def test_rows_of_a_batch_do_not_influence_each_other(model: resnet50.ResNet50) -> None:
    pictures = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        together = model(pictures)
        alone = torch.cat([model(picture[None]) for picture in pictures])
    assert together.shape == (3, 1000)
    assert (together[0] - together[1]).abs().max() > 0.1
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-3)


def test_seed_decides_the_random_weights(model: resnet50.ResNet50) -> None:
    assert torch.equal(resnet50.build(seed=0).fc.weight, model.fc.weight)
    assert not torch.equal(resnet50.build(seed=1).fc.weight, model.fc.weight)


def test_saved_weights_load(model: resnet50.ResNet50, tmp_path: Path) -> None:
    file = tmp_path / "resnet50.pth"
    torch.save(model.state_dict(), file)
    loaded = resnet50.build(file, seed=5)
    assert not loaded.training
    assert torch.equal(loaded.fc.weight, model.fc.weight)


def test_weights_for_other_classes_are_refused(model: resnet50.ResNet50, tmp_path: Path) -> None:
    file = tmp_path / "ten_classes.pth"
    torch.save({**model.state_dict(), "fc.weight": torch.zeros(10, 2048)}, file)
    with pytest.raises(ValueError, match="torchvision") as error:
        resnet50.build(file)
    assert str(error.value).startswith(
        f'{file}: tensor "fc.weight" has shape [10, 2048], the model needs [1000, 2048]. '
        "Give torchvision's resnet50 weights (1000 classes)"
    )
