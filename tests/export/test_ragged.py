"""A padded model with a ragged input gives every item the answer that it gets alone."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from torch import Tensor, nn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import draw_items, feed
from export.graph.recipe import Recipe
from export.models.ragged import Counts, Ragged, keep
from export.models.ragged_onnx import Names, write

MIXES = [[5], [4, 4, 4], [1, 7, 3], [2, 9, 1, 6, 9]]
OFFSETS = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"


class Mean(nn.Module):
    """The mean over an item's own length, for any shape; zeros for an empty item."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, padded: Tensor, lengths: Tensor) -> Tensor:
        return padded.sum(self.axis) / lengths.clamp(min=1).reshape(-1, *[1] * (padded.ndim - 2))


class Conv(nn.Module):
    """Two 3x3 convolutions; without `keep` the second would read the first one's output in the padding."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, padded: Tensor, lengths: Tensor) -> Tensor:
        own = keep(lengths, padded.shape[-1])
        hidden = (self.first(padded) * own).relu()
        answer: Tensor = (self.second(hidden) * own).sum(-1)
        return answer


def flatten(module: Ragged, items: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The batch inputs of the items, by Triton's definition."""
    sizes = [item.numel() for item in items]
    counts = [list(item.shape) for item in items] if module.counts == "item_shape" else [0, *np.cumsum(sizes)]
    return (
        torch.cat([item.flatten() for item in items]),
        torch.tensor(counts, dtype=torch.int32),
        torch.full((max(sizes),), -7, dtype=torch.int32),  # only the shape means something
    )


@pytest.mark.parametrize("counts", ["offsets", "item_shape"])
@pytest.mark.parametrize("lengths", [*MIXES, [0, 3, 0], [0, 0]], ids=str)
@pytest.mark.parametrize(
    ("shape", "model"),
    [((-1,), Mean(1)), ((-1, 5), Mean(1)), ((2, 3, -1), Mean(3)), ((2, -1, 3), Mean(2)), ((1, 4, -1), Conv())],
)
def test_items_are_answered_as_if_alone(
    counts: Counts, lengths: list[int], shape: tuple[int, ...], model: nn.Module
) -> None:
    module = Ragged(model, item=shape, counts=counts)
    rng = torch.Generator().manual_seed(sum(lengths))
    items = [torch.randn([n if dim == -1 else dim for dim in shape], generator=rng) for n in lengths]
    if isinstance(model, Conv) and max(lengths) == 0:
        pytest.skip("torch has no convolution of nothing")
    together = module(*flatten(module, items))
    assert len(together) == len(items)
    for item, answer, length in zip(items, together, lengths, strict=True):
        alone = model(item[None], torch.tensor([length]))[0] if length else torch.zeros_like(answer)
        torch.testing.assert_close(answer, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_frames_in_a_file_with_offsets(tmp_path: Path) -> None:
    config = text_format.Parse(
        'max_batch_size: 8 input { name: "F" data_type: TYPE_FP32 dims: [ -1, 5 ] allow_ragged_batch: true }'
        f'batch_input {{ kind: {OFFSETS} target_name: "O" data_type: TYPE_INT32 source_input: "F" }}'
        'batch_input { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "LONGEST" data_type: TYPE_INT32'
        ' source_input: "F" }',
        ModelConfig(),
    )
    path = tmp_path / "model.onnx"
    module = Ragged(Mean(1), item=(-1, 5)).eval()
    names = Names(input="F", counts="O", output="M")
    write(module, Recipe(model="frames"), path, names=names, data_type=torch.float32)
    session = onnxruntime.InferenceSession(str(path))
    assert [node.shape for node in session.get_inputs()] == [["5*total"], ["items + 1"], ["5*longest"]]
    for lengths in (*MIXES, [0, 3, 0]):
        items = draw_items(config, lengths, seed=1)
        for item, answer in zip(items, session.run(None, feed(config, items))[0], strict=True):
            own = item["F"].astype(np.float32)
            np.testing.assert_allclose(answer, own.sum(axis=0) / max(len(own), 1), atol=1e-5)
