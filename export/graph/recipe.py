"""What an exported file was made of, kept inside the ONNX file (`metadata_props`), so that it can be proved again."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx

KEY = "triton_batching.recipe"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The inputs of one export; two files with equal recipes give equal answers.

    `width` is the recogniser's channel count; `weights` the name of the state-dict file (no folder: the file travels)
    or None for weights drawn from `seed`; `weights_sha256` its digest; `format` rises when an exporter changes what it
    writes.
    """

    model: str
    seed: int = 0
    width: int | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    format: int = 1

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Read the recipe of an ONNX file; None when it is absent, unreadable or was not written by this project."""
        if not path.is_file():
            return None
        try:
            properties = onnx.load(path, load_external_data=False).metadata_props
            text = next(entry.value for entry in properties if entry.key == KEY)
            return cls(**json.loads(text))
        except Exception:
            return None

    def stamp(self, model: onnx.ModelProto) -> None:
        """Write the recipe into `model`."""
        onnx.helper.set_model_props(model, {KEY: json.dumps(dataclasses.asdict(self), sort_keys=True)})

    def with_weights(self, path: Path) -> Self:
        """The recipe with its weights taken from `path`."""
        return dataclasses.replace(self, weights=path.name, weights_sha256=digest(path))


def digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
