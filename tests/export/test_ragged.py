"""A padded model with a ragged input gives every item the answer that it gets alone."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from torch import Tensor, nn
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.ragged_feed import draw_items, feed
from export.graph.recipe import Recipe
from export.models.ragged import Counts, Item, Packing, Ragged, keep
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


def test_pack_undoes_pad() -> None:
    seen: list[Packing] = []

    class Look(nn.Module):
        def forward(self, flat: Tensor, packing: Packing) -> Tensor:
            seen.append(packing)
            return packing.pack(packing.pad(flat) + 1)

    module = Ragged(Look(), item=(-1,), packed=True)
    items = [torch.tensor([1.0, 2.0]), torch.zeros(0), torch.tensor([3.0, 4.0, 5.0])]
    assert module(*flatten(module, items)).tolist() == [2, 3, 4, 5, 6]
    assert seen[0].positions().tolist() == [0, 1, 0, 1, 2]
    assert seen[0].pad(torch.arange(1, 6))[:, 0].tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]


@pytest.mark.parametrize("shape", [(), (3,), (-1, -1), (0, -1)])
def test_an_item_has_one_open_axis(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="exactly one dim must be -1"):
        Item(shape=shape)


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


def test_pictures_in_a_file_with_several_in_a_request(tmp_path: Path) -> None:
    """A file for pictures 4 high with item shapes; the graph computes the longest length."""
    path = tmp_path / "model.onnx"
    model = Conv().eval()
    names = Names(input="P", counts="SHAPES", output="Y")
    module = Ragged(model, item=(1, 4, -1), counts="item_shape").eval()
    write(module, Recipe(model="pictures"), path, names=names, data_type=torch.float32)
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["P", "SHAPES"]
    assert "Loop" not in {node.op_type for node in graph.node}
    session = onnxruntime.InferenceSession(str(path))
    rng = np.random.default_rng(0)
    # Three requests: 2 pictures of width 3, 1 of width 8, 3 of width 5.
    requests = [rng.standard_normal((rows, 1, 4, width), dtype=np.float32) for rows, width in ((2, 3), (1, 8), (3, 5))]
    shapes = np.array([crops.shape[1:] for crops in requests for _ in crops], dtype=np.int32)
    answer = session.run(None, {"P": np.concatenate([crops.ravel() for crops in requests]), "SHAPES": shapes})[0]
    with torch.inference_mode():
        expected = [
            model(torch.from_numpy(crops), torch.full((len(crops),), crops.shape[-1])).numpy() for crops in requests
        ]
    np.testing.assert_allclose(answer, np.concatenate(expected), atol=1e-5)


def test_the_feed_is_the_documented_example() -> None:
    """Requests of 3, 4 and 5 elements, as in Triton's documentation of ragged batching."""
    kinds = {
        "BATCH_ELEMENT_COUNT": [3, 4, 5],
        "BATCH_ACCUMULATED_ELEMENT_COUNT": [3, 7, 12],
        OFFSETS: [0, 3, 7, 12],
        "BATCH_ITEM_SHAPE": [[3], [4], [5]],
        "BATCH_ITEM_SHAPE_FLATTEN": [3, 4, 5],
    }
    entries = "".join(
        f'batch_input {{ kind: {kind} target_name: "{kind}" data_type: TYPE_{number} source_input: "X" }}'
        for kind, number in zip([*kinds, "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"], ["INT32", "FP32"] * 3, strict=True)
    )
    text = f'input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} {entries}'
    config = text_format.Parse(text, ModelConfig())
    made = feed(config, draw_items(config, [3, 4, 5]))
    assert made["X"].shape == (12,)
    assert made["BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"].shape == (5,)
    assert {kind: made[kind].tolist() for kind in kinds} == kinds
    assert made["BATCH_ACCUMULATED_ELEMENT_COUNT"].dtype == np.float32
    assert made[OFFSETS].dtype == np.int32
