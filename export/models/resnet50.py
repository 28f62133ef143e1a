"""ResNet-50 for 224 x 224 pictures, with torchvision's state-dict names so that its public weights load.

He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), in the v1.5 form of torchvision:
where a bottleneck halves the picture, its 3x3 convolution has the stride, not its first 1x1.
"""

from pathlib import Path

from torch import Tensor, nn

from export.models import state_dict

CLASSES = 1000
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
EXPANSION = 4
ADVICE = (
    "Give torchvision's resnet50 weights (1000 classes), "
    "for example resnet50-11ad3fa6.pth from download.pytorch.org/models."
)


class Bottleneck(nn.Module):
    """1x1 down to `channels`, 3x3 with the stride, 1x1 up to 4 x `channels`, plus a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = state_dict.damp(nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (B, inputs, H, W) to (B, 4 x channels, H / stride, W / stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        out: Tensor = self.relu(self.bn3(self.conv3(y)) + self.downsample(x))
        return out


class ResNet50(nn.Module):
    """Normalised pictures (B, 3, 224, 224) float32 to raw class scores (B, 1000); 25.6 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * EXPANSION, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores (B, 1000), no softmax."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(pictures))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def _stages() -> list[nn.Sequential]:
    stages, inputs = [], 64
    for channels, blocks, stride in STAGES:
        first = Bottleneck(inputs, channels, stride)
        inputs = channels * EXPANSION
        stages.append(nn.Sequential(first, *(Bottleneck(inputs, channels, 1) for _ in range(blocks - 1))))
    return stages


def build(weights: Path | None = None, seed: int = 0) -> ResNet50:
    """ResNet-50 in eval mode, filled from the file `weights`, or else with random weights drawn from `seed`.

    Raises ValueError if the file does not fit (see state_dict.load).
    """
    model = ResNet50()
    if weights is None:
        return state_dict.fill_randomly(model, seed)
    return state_dict.load(model, weights, ADVICE)
