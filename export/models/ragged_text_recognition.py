"""The text recogniser for word crops of different width in one batch; each crop gets the answer that it gets alone.

A narrow crop is padded on the right to the widest crop of its batch. Layer by layer, 3x3 convolutions would carry the
padding into the crop's last columns. Beyond the edge of a crop alone they see zeros, so the columns beyond each
crop's own width are set to zero before every layer that could read them.
"""

import torch
from torch import Tensor, nn

from export.models.ragged import keep
from export.models.text_recognition import CLASSES, TextRecogniser

# The logit of every character in the steps that a crop does not have.
NEVER = -1e4


class RaggedRecogniser(nn.Module):
    """Padded crops (N, 1, 32, W) and own widths (N,) to logits (N, W // 4 + 1, 37).

    Steps 0 to width // 4 of an item equal those of `recogniser` on the crop alone. The others are blank (logit 0 for
    class 0, -10000 for the characters), so that decoding all steps reads the same word.
    """

    def __init__(self, recogniser: TextRecogniser) -> None:
        super().__init__()
        self.recogniser = recogniser

    def forward(self, crops: Tensor, widths: Tensor) -> Tensor:
        """Layers and order of `text_recognition.ConvNet.forward`; crops must be at least 8 wide."""
        net = self.recogniser.FeatureExtraction.ConvNet
        own = keep(widths, crops.shape[-1])
        x = net.relu(net.bn0_1(net.conv0_1(crops * own))) * own
        x, own, widths = _cut(net.maxpool1(net.relu(net.bn0_2(net.conv0_2(x)))), widths // 2)
        x = net.relu(net.bn1(net.conv1(_stage(net.layer1, x, own))))
        x, own, widths = _cut(net.maxpool2(x), widths // 2)
        x = net.relu(net.bn2(net.conv2(_stage(net.layer2, x, own)))) * own
        # The pool pads with -inf and reads zeros here, which is the same because a ReLU's output is never negative.
        x, own, widths = _cut(net.maxpool3(x), widths + 1)
        x = net.relu(net.bn3(net.conv3(_stage(net.layer3, x, own)))) * own
        x = net.relu(net.bn4_1(net.conv4_1(_stage(net.layer4, x, own))))
        x, own, widths = _cut(x, widths + 1)
        x = net.relu(net.bn4_2(net.conv4_2(x)))
        logits = self.recogniser.Prediction(x.mean(dim=2).permute(0, 2, 1))
        return _blank_beyond(logits, widths - 1)


def _cut(x: Tensor, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Set the columns beyond the items' new widths to zero; returns the result, its mask and the widths."""
    own = keep(widths, x.shape[-1])
    return x * own, own, widths


def _stage(blocks: nn.Module, x: Tensor, own: Tensor) -> Tensor:
    """The residual blocks of one stage, with the padding zeroed before every 3x3 convolution."""
    for block in blocks.children():
        y = block.relu(block.bn1(block.conv1(x))) * own  # type: ignore[operator]
        x = block.relu(block.bn2(block.conv2(y)) + block.downsample(x)) * own  # type: ignore[operator]
    return x


def _blank_beyond(logits: Tensor, steps: Tensor) -> Tensor:
    own = torch.arange(logits.shape[1]) < steps[:, None]
    blank = torch.full((CLASSES,), NEVER)
    blank[0] = 0.0
    return torch.where(own[:, :, None], logits, blank)
