"""The text recogniser None-ResNet-None-CTC: a residual network over a picture, a CTC step every 4 columns.

Architecture and state-dict names are those of Baek et al., "What Is Wrong With Scene Text Recognition Model
Comparisons?" (ICCV 2019), code clovaai/deep-text-recognition-benchmark, so that its public weights load.
"""

from pathlib import Path

from torch import Tensor, nn

from export.models import alphabet, state_dict

PUBLIC_WIDTH = 512
CLASSES = len(alphabet.ALPHABET) + 1


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the number of channels changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = state_dict.damp(nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (B, inputs, H, W) to (B, outputs, H, W)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class ConvNet(nn.Module):
    """Pictures (B, 1, 32, W) to feature maps (B, width, 1, W // 4 + 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        stem, c1, c2 = width // 16, width // 4, width // 2
        self.conv0_1 = nn.Conv2d(1, stem, 3, 1, 1, bias=False)
        self.bn0_1 = nn.BatchNorm2d(stem)
        self.conv0_2 = nn.Conv2d(stem, 2 * stem, 3, 1, 1, bias=False)
        self.bn0_2 = nn.BatchNorm2d(2 * stem)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool1 = nn.MaxPool2d(2, 2)
        self.layer1 = _stage(2 * stem, c1, 1)
        self.conv1, self.bn1 = nn.Conv2d(c1, c1, 3, 1, 1, bias=False), nn.BatchNorm2d(c1)
        self.maxpool2 = nn.MaxPool2d(2, 2)
        self.layer2 = _stage(c1, c2, 2)
        self.conv2, self.bn2 = nn.Conv2d(c2, c2, 3, 1, 1, bias=False), nn.BatchNorm2d(c2)
        # From here on only the height shrinks, because the columns are the time steps of CTC.
        self.maxpool3 = nn.MaxPool2d(2, (2, 1), (0, 1))
        self.layer3 = _stage(c2, width, 5)
        self.conv3, self.bn3 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer4 = _stage(width, width, 3)
        self.conv4_1 = nn.Conv2d(width, width, 2, (2, 1), (0, 1), bias=False)
        self.bn4_1 = nn.BatchNorm2d(width)
        self.conv4_2 = nn.Conv2d(width, width, 2, 1, 0, bias=False)
        self.bn4_2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers in the order of their declaration."""
        x = self.relu(self.bn0_1(self.conv0_1(x)))
        x = self.maxpool1(self.relu(self.bn0_2(self.conv0_2(x))))
        x = self.maxpool2(self.relu(self.bn1(self.conv1(self.layer1(x)))))
        x = self.maxpool3(self.relu(self.bn2(self.conv2(self.layer2(x)))))
        x = self.layer4(self.relu(self.bn3(self.conv3(self.layer3(x)))))
        x = self.relu(self.bn4_1(self.conv4_1(x)))
        out: Tensor = self.relu(self.bn4_2(self.conv4_2(x)))
        return out


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs), *(Block(outputs, outputs) for _ in range(blocks - 1)))


class FeatureExtractor(nn.Module):
    """A level of names only: the public weights have names like FeatureExtraction.ConvNet.conv0_1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ConvNet = ConvNet(width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network inside."""
        features: Tensor = self.ConvNet(x)
        return features


class TextRecogniser(nn.Module):
    """Pictures (B, 1, 32, W) float32 in [-1, 1] to raw CTC logits (B, W // 4 + 1, 37), class 0 the blank.

    `width` is the number of feature channels: 512 (44.3 M parameters) fits the public weights, 64 (0.7 M) is
    the narrow model of export/weights. It must be a multiple of 16.
    """

    def __init__(self, width: int = PUBLIC_WIDTH) -> None:
        super().__init__()
        if width < 16 or width % 16:
            raise ValueError(f"width {width}: the stem has width / 16 channels, so give a positive multiple of 16.")
        self.FeatureExtraction = FeatureExtractor(width)
        self.Prediction = nn.Linear(width, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        """Raw logits, no softmax."""
        features = self.FeatureExtraction(pictures)
        # The height is 1 for 32-pixel pictures. The mean equals the original's adaptive pool, and it exports for every
        # batch size and width.
        steps = features.mean(dim=2).permute(0, 2, 1)
        logits: Tensor = self.Prediction(steps)
        return logits


def build(width: int = PUBLIC_WIDTH, weights: Path | None = None, seed: int = 0) -> TextRecogniser:
    """The recogniser in eval mode, filled from the file `weights`, or else with random weights from `seed`.

    Raises ValueError if the file does not fit (see state_dict.load).
    """
    model = TextRecogniser(width)
    if weights is None:
        return state_dict.fill_randomly(model, seed)
    advice = f"This model has width {width}: give the width that the file was trained with, or other weights."
    return state_dict.load(model, weights, advice)
