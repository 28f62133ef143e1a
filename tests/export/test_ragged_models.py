"""The ragged models of the repository: their proofs, and the checks of their configurations."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.__main__ import main as export
from export.graph.recipe import Recipe
from export.models import ragged, ragged_onnx
from export.models.alphabet import decode
from export.models.catalogue import CATALOGUE, TRAINED
from export.models.ragged_text_recognition import NEVER, RaggedRecogniser
from export.models.text_recognition import TextRecogniser, build
from export.repository import REPOSITORY, faults
from export.verify import ProofError, prove

MODELS = ("text_recognition_ragged", "ragged_encoder")


@pytest.fixture(scope="module", autouse=True)
def exported() -> None:
    assert export([*MODELS]) == 0


@pytest.fixture(scope="module")
def recogniser() -> TextRecogniser:
    return build(64, TRAINED)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "limit"), [("text_recognition_ragged", 1e-5), ("ragged_encoder", 1e-6)])
def test_every_item_is_answered_as_it_is_alone(model: str, limit: float) -> None:
    proof = prove(model, REPOSITORY / model / "1" / "model.onnx", CATALOGUE[model])
    assert proof.rows.error <= limit
    assert proof.reference is not None
    assert proof.reference.error <= limit


def test_logits_are_those_of_the_recogniser_at_its_natural_width(recogniser: TextRecogniser) -> None:
    """All widths from 8 to 43 together: every remainder of the three roundings, and steps of 3 to 11."""
    crops = [torch.rand(1, 32, width) * 2 - 1 for width in range(8, 44)]
    widths = torch.tensor([crop.shape[-1] for crop in crops])
    padded = torch.stack([nn.functional.pad(crop, (0, 43 - crop.shape[-1])) for crop in crops])
    with torch.inference_mode():
        together = RaggedRecogniser(recogniser)(padded, widths)
        alone = [recogniser(crop[None])[0] for crop in crops]
    for logits, expected, width in zip(together, alone, widths.tolist(), strict=True):
        assert len(expected) == width // 4 + 1
        torch.testing.assert_close(logits[: len(expected)], expected, atol=2e-5, rtol=1e-5)
        # Beyond its own steps a crop says blank, so all steps read as the own ones do.
        assert (logits[len(expected) :, 0] == 0).all()
        assert (logits[len(expected) :, 1:] == NEVER).all()
        assert decode(logits[None].numpy()) == decode(expected[None].numpy())


CONFIG = """
name: "leaky"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "S" data_type: TYPE_INT32 source_input: "X" } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { }
"""


class Leaky(nn.Module):
    """The mean over the padded length, so an item's answer depends on the longest item of the batch."""

    def forward(self, padded: Tensor, lengths: Tensor) -> Tensor:
        return padded.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "leaky" / "1").mkdir(parents=True)
    (repository / "leaky" / "config.pbtxt").write_text(CONFIG)
    ragged_onnx.write(
        ragged.Ragged(Leaky(), item=(-1,), counts="item_shape").eval(),
        Recipe(model="leaky"),
        repository / "leaky" / "1" / "model.onnx",
        names=ragged_onnx.Names(input="X", counts="S", output="Y"),
        data_type=torch.float32,
    )
    return repository


@pytest.mark.slow
def test_a_model_whose_padding_leaks_is_not_proved(leaky: Path) -> None:
    exporter = dataclasses.replace(CATALOGUE["ragged_encoder"], lengths=(1, 9))
    with pytest.raises(
        ProofError, match=r"an item among longer ones answers differently .* So padding reaches the answer"
    ):
        prove("leaky", leaky / "leaky" / "1" / "model.onnx", exporter, repository=leaky, with_reference=False)


WRONG = [
    (" allow_ragged_batch: true", ""),
    ('"S" data_type', '"T" data_type'),
    ('source_input: "X"', 'source_input: "Z"'),
    ('source_input: "X"', 'source_input: "X" source_input: "X"'),
    ("ITEM_SHAPE", "ELEMENT_COUNT"),
    ("TYPE_INT32", "TYPE_INT64"),
    ("TYPE_FP32 dims: [ -1 ]", "TYPE_INT32 dims: [ -1 ]"),
    ("allow_ragged_batch: true", "allow_ragged_batch: true optional: true"),
    ('name: "X"', 'name: "W"'),
    ("dynamic_batching", 'batch_output [ { target_name: "V" source_input: "X" } ] dynamic_batching'),
]


def test_disagreements_with_a_ragged_graph_are_named(leaky: Path, golden: Callable[..., None]) -> None:
    path, said = leaky / "leaky" / "config.pbtxt", list[str]()
    assert list(faults(leaky)) == []
    for old, new in WRONG:
        path.write_text(CONFIG.replace(old, new, 1))
        said += [f"{old} -> {new}", *(f"    {fault.rpartition('pbtxt: ')[2]}" for fault in faults(leaky))]
    path.write_text(CONFIG)
    golden("export_ragged_faults", "\n".join(said))
