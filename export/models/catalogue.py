"""The models that `python -m export` exports: how each file is written, and the reference it is proved against.

Functions import torch and the torch models, so that `ranker` exports without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from export.graph.recipe import Recipe, digest
from export.models import ranker
from triton_batching.terminal import Mistake

TRAINED = Path(__file__).parents[1] / "weights" / "text_recognition.pth"


class Reference(Protocol):
    """A model in its own framework."""

    parameters: int
    """Number of trained values."""

    def __call__(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run one batch of named arrays."""


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """How one model is exported.

    `write` and `reference` take the recipe and the weights file (None: weights drawn from the seed).
    """

    seeded: Recipe
    write: Callable[[Recipe, Path | None, Path], None]
    reference: Callable[[Recipe, Path | None], Reference]
    weights: Path | None = None
    takes_weights: bool = True
    takes_width: bool = False
    lengths: tuple[int, int] = (1, 48)
    """Shortest and longest item that a ragged model is proved with; other models ignore it."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the next export; raises `Mistake` if the weights file is missing."""
        if self.weights is None:
            return self.seeded
        if not self.weights.is_file():
            raise Mistake(f"{self.weights}: no such weights file. Name a torch state dict (.pth).")
        return self.seeded.with_weights(self.weights)

    def weights_of(self, recipe: Recipe) -> Path | None:
        """The weights file of `recipe`, None if it has none; raises `Mistake` if this exporter has another file."""
        if recipe.weights is None:
            return None
        if self.weights is None or not self.weights.is_file() or digest(self.weights) != recipe.weights_sha256:
            raise Mistake(
                f"the reference needs the weights that the file was exported from, {recipe.weights}, which are not "
                f"here. Name them: --weights {recipe.weights}."
            )
        return self.weights


@dataclass(frozen=True, kw_only=True)
class _TorchModel:
    """A torch model with one input and one output; `build` imports torch."""

    build: Callable[[Recipe, Path | None], Any]
    input_name: str
    output_name: str
    dims: tuple[int, ...]

    def write(self, recipe: Recipe, weights: Path | None, path: Path) -> None:
        from export.graph import torch_onnx

        module = _built(self.build, recipe, weights)
        torch_onnx.write(module, recipe, path, input_name=self.input_name, output_name=self.output_name, dims=self.dims)

    def reference(self, recipe: Recipe, weights: Path | None) -> Reference:
        from export.graph import torch_onnx

        module = _built(self.build, recipe, weights)
        return torch_onnx.Reference(module, input_name=self.input_name, output_name=self.output_name)


@dataclass(frozen=True, kw_only=True)
class _RaggedModel:
    """A torch model with a ragged input (export/models/ragged.py); its reference runs one item at a time.

    `ragged` turns the built model into the module that `Ragged` calls. `dims` are one item's, with -1 for the length.
    """

    build: Callable[[Recipe, Path | None], Any]
    ragged: Callable[[Any], Any]
    input_name: str
    counts_name: str
    output_name: str
    counts: Literal["offsets", "item_shape"]
    dims: tuple[int, ...]
    data_type: str
    packed: bool = False

    def write(self, recipe: Recipe, weights: Path | None, path: Path) -> None:
        import torch

        from export.models import ragged, ragged_onnx

        model = self.ragged(_built(self.build, recipe, weights))
        ragged_onnx.write(
            ragged.Ragged(model, item=self.dims, counts=self.counts, packed=self.packed).eval(),
            recipe,
            path,
            names=ragged_onnx.Names(input=self.input_name, counts=self.counts_name, output=self.output_name),
            data_type=getattr(torch, self.data_type),
        )

    def reference(self, recipe: Recipe, weights: Path | None) -> Reference:
        from export.graph import torch_onnx

        module = _built(self.build, recipe, weights)
        return torch_onnx.Reference(module, input_name=self.input_name, output_name=self.output_name)


def _encoder(recipe: Recipe, _: Path | None) -> Any:
    from export.models import ragged_encoder

    return ragged_encoder.build(recipe.seed)


def _masked(recogniser: Any) -> Any:
    from export.models import ragged_text_recognition

    return ragged_text_recognition.RaggedRecogniser(recogniser)


def _built(build: Callable[[Recipe, Path | None], Any], recipe: Recipe, weights: Path | None) -> Any:
    try:
        return build(recipe, weights)
    except ValueError as error:
        raise Mistake(str(error)) from error


def _text_recognition(recipe: Recipe, weights: Path | None) -> Any:
    from export.models import text_recognition

    return text_recognition.build(recipe.width or text_recognition.PUBLIC_WIDTH, weights, recipe.seed)


def _resnet50(recipe: Recipe, weights: Path | None) -> Any:
    from export.models import resnet50

    return resnet50.build(weights, recipe.seed)


def _ranker(recipe: Recipe, _: Path | None, path: Path) -> None:
    ranker.write(recipe, path)


# "input.1" and "308" are the names in Triton's tutorial, so that its clients keep working.
_WORDS = _TorchModel(build=_text_recognition, input_name="input.1", output_name="308", dims=(1, 32, 100))
_PICTURES = _TorchModel(build=_resnet50, input_name="input", output_name="output", dims=(3, 224, 224))
_CROPS = _RaggedModel(
    build=_text_recognition,
    ragged=_masked,
    input_name="CROP",
    counts_name="SHAPES",
    output_name="LOGITS",
    counts="item_shape",
    dims=(1, 32, -1),
    data_type="float32",
)
_TEXTS = _RaggedModel(
    build=_encoder,
    ragged=lambda encoder: encoder,
    input_name="TOKENS",
    counts_name="OFFSETS",
    output_name="VECTOR",
    counts="offsets",
    dims=(-1,),
    data_type="int32",
    packed=True,
)

CATALOGUE = {
    "ranker": Exporter(
        seeded=Recipe(model="ranker", format=2),
        write=_ranker,
        reference=lambda recipe, _: ranker.Reference(recipe.seed),
        takes_weights=False,
    ),
    "resnet50": Exporter(
        seeded=Recipe(model="resnet50"),
        write=_PICTURES.write,
        reference=_PICTURES.reference,
    ),
    "text_recognition": Exporter(
        seeded=Recipe(model="text_recognition", width=64),
        write=_WORDS.write,
        reference=_WORDS.reference,
        weights=TRAINED,
        takes_width=True,
    ),
    "text_recognition_512": Exporter(
        seeded=Recipe(model="text_recognition_512", width=512),
        write=_WORDS.write,
        reference=_WORDS.reference,
    ),
    "text_recognition_ragged": Exporter(
        seeded=Recipe(model="text_recognition_ragged", width=64),
        write=_CROPS.write,
        reference=_CROPS.reference,
        weights=TRAINED,
        lengths=(8, 300),
    ),
    "ragged_encoder": Exporter(
        seeded=Recipe(model="ragged_encoder"),
        write=_TEXTS.write,
        reference=_TEXTS.reference,
        takes_weights=False,
        lengths=(0, 48),
    ),
}
"""Model name -> how to export it."""


def choose(models: list[str], *, weights: Path | None = None, width: int | None = None) -> dict[str, Exporter]:
    """Exporters by model name, all of them for an empty list; `weights` and `width` replace those of one named model.

    Raises `Mistake` for an unknown name and for weights or a width that the model does not take.
    """
    names = models or list(CATALOGUE)
    for name in names:
        if name not in CATALOGUE:
            raise Mistake(f"unknown model '{name}'. Known: {', '.join(CATALOGUE)}.")
    if weights is None and width is None:
        return {name: CATALOGUE[name] for name in names}
    if len(models) != 1:
        raise Mistake("--weights and --width are for one model: name it, for example text_recognition_512.")
    exporter = CATALOGUE[names[0]]
    if width is not None:
        if not exporter.takes_width:
            raise Mistake(f"'{names[0]}' has no --width. Only text_recognition has several.")
        exporter = replace(exporter, seeded=replace(exporter.seeded, width=width), weights=None)
    if weights is not None:
        if not exporter.takes_weights:
            raise Mistake(f"'{names[0]}' takes no --weights: its weights are drawn from a seed.")
        exporter = replace(exporter, weights=weights)
    return {names[0]: exporter}
