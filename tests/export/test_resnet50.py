from pathlib import Path

import pytest
import torch

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


@pytest.mark.slow
def test_weights_for_other_classes_are_refused(model: resnet50.ResNet50, tmp_path: Path) -> None:
    file = tmp_path / "ten_classes.pth"
    torch.save({**model.state_dict(), "fc.weight": torch.zeros(10, 2048)}, file)
    with pytest.raises(ValueError, match="torchvision") as error:
        resnet50.build(file)
    assert str(error.value).startswith(
        f'{file}: tensor "fc.weight" has shape [10, 2048], the model needs [1000, 2048]. '
        "Give torchvision's resnet50 weights (1000 classes)"
    )
