"""Records in an ONNX file (`metadata_props`) what it was exported from, so that it can be proved again."""

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
    """What one export starts from; two files with equal recipes give equal answers.

    `width` is the recogniser's channel count. `weights` is the name of the state-dict file without its folder, None for
    weights drawn from `seed`; `weights_sha256` is its digest. `format` rises when an exporter writes another graph.
    """

    model: str
    seed: int = 0
    width: int | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    format: int = 1

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The recipe in an ONNX file; None if the file is missing, unreadable or from another exporter."""
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


def model_digest(path: Path) -> str:
    """`digest` of a served file; empty for one that does not exist: a Python model may have none."""
    return digest(path) if path.is_file() else ""
