"""Every model that can be exported: how its file is written, and the reference that the file is proved against.

torch is imported only when a torch model is really built, so that `ranker` exports without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from export import ranker
from export.recipe import Recipe, digest

TRAINED = Path(__file__).parent / "weights" / "text_recognition.pth"


class Reference(Protocol):
    """A model in its own framework."""

    parameters: int
    """Number of trained values."""

    def __call__(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run one batch of named arrays."""


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One row of the catalogue.

    `tolerance` bounds |onnxruntime - reference| over the largest reference value (at least 1).
    """

    recipe: Recipe
    write: Callable[[Recipe, Path], None]
    reference: Callable[[Recipe], Reference]
    tolerance: float
    takes_weights: bool = True
    takes_width: bool = False
    lengths: tuple[int, int] = (1, 48)
    """Shortest and longest item that a ragged model is proved with; other models ignore it."""


@dataclass(frozen=True, kw_only=True)
class _TorchModel:
    """A torch model with one input and one output; `build` imports torch."""

    build: Callable[[Recipe], Any]
    input_name: str
    output_name: str
    dims: tuple[int, ...]

    def write(self, recipe: Recipe, path: Path) -> None:
        from export import torch_onnx

        torch_onnx.write(
            self.build(recipe),
            recipe,
            path,
            input_name=self.input_name,
            output_name=self.output_name,
            dims=self.dims,
        )

    def reference(self, recipe: Recipe) -> Reference:
        from export import torch_onnx

        return torch_onnx.Reference(self.build(recipe), input_name=self.input_name, output_name=self.output_name)


@dataclass(frozen=True, kw_only=True)
class _RaggedModel:
    """A torch model behind a ragged input (export/ragged.py); its reference runs one unpadded item at a time.

    `ragged` makes of the built model what `Ragged` calls; `dims` are one item's, with -1 for the length.
    """

    build: Callable[[Recipe], Any]
    ragged: Callable[[Any], Any]
    input_name: str
    counts_name: str
    output_name: str
    counts: Literal["offsets", "item_shape"]
    dims: tuple[int, ...]
    data_type: str
    packed: bool = False

    def write(self, recipe: Recipe, path: Path) -> None:
        import torch

        from export import ragged, ragged_onnx

        model = self.ragged(self.build(recipe))
        ragged_onnx.write(
            ragged.Ragged(model, item=self.dims, counts=self.counts, packed=self.packed).eval(),
            recipe,
            path,
            names=ragged_onnx.Names(input=self.input_name, counts=self.counts_name, output=self.output_name),
            data_type=getattr(torch, self.data_type),
        )

    def reference(self, recipe: Recipe) -> Reference:
        from export import torch_onnx

        return torch_onnx.Reference(self.build(recipe), input_name=self.input_name, output_name=self.output_name)


def _encoder(recipe: Recipe) -> Any:
    from export import ragged_encoder

    return ragged_encoder.build(recipe.seed)


def _masked(recogniser: Any) -> Any:
    from export import ragged_text_recognition

    return ragged_text_recognition.RaggedRecogniser(recogniser)


def _text_recognition(recipe: Recipe) -> Any:
    from export import text_recognition

    return text_recognition.build(recipe.width or text_recognition.PUBLIC_WIDTH, _weights(recipe), recipe.seed)


def _resnet50(recipe: Recipe) -> Any:
    from export import resnet50

    return resnet50.build(_weights(recipe), recipe.seed)


def _weights(recipe: Recipe) -> Path | None:
    if recipe.weights is None:
        return None
    # A relative name is the project's own file, so that a committed model names no machine's folders.
    return Path(__file__).parents[1] / recipe.weights


def with_weights(recipe: Recipe, path: Path) -> Recipe:
    """The recipe that takes its weights from `path`; raises `ValueError` when there is no such file."""
    if not path.is_file():
        raise ValueError(f"{path}: no such weights file. Name a torch state dict (.pth).")
    root = Path(__file__).resolve().parents[1]
    inside = path.resolve().is_relative_to(root)
    name = str(path.resolve().relative_to(root) if inside else path.resolve())
    return replace(recipe, weights=name, weights_sha256=digest(path))


# "input.1" and "308" are the names that the tutorial's export gave; clients written for it keep working.
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


def catalogue() -> dict[str, Exporter]:
    """Model name -> how to export it."""
    return {
        "ranker": Exporter(
            recipe=Recipe(model="ranker"),
            write=ranker.write,
            reference=lambda recipe: ranker.Reference(recipe.seed),
            tolerance=1e-4,
            takes_weights=False,
        ),
        "resnet50": Exporter(
            recipe=Recipe(model="resnet50"),
            write=_PICTURES.write,
            reference=_PICTURES.reference,
            tolerance=1e-3,
        ),
        "text_recognition": Exporter(
            recipe=with_weights(Recipe(model="text_recognition", width=64), TRAINED),
            write=_WORDS.write,
            reference=_WORDS.reference,
            tolerance=1e-3,
            takes_width=True,
        ),
        "text_recognition_512": Exporter(
            recipe=Recipe(model="text_recognition_512", width=512),
            write=_WORDS.write,
            reference=_WORDS.reference,
            tolerance=1e-3,
        ),
        "text_recognition_ragged": Exporter(
            recipe=with_weights(Recipe(model="text_recognition_ragged", width=64), TRAINED),
            write=_CROPS.write,
            reference=_CROPS.reference,
            tolerance=1e-4,
            lengths=(8, 300),
        ),
        "ragged_encoder": Exporter(
            recipe=Recipe(model="ragged_encoder"),
            write=_TEXTS.write,
            reference=_TEXTS.reference,
            tolerance=1e-5,
            takes_weights=False,
            lengths=(0, 48),
        ),
    }
