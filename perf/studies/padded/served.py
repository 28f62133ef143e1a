"""The repository of the experiment on padded requests: the configurations of one encoder, and the requests to it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.add.__main__ import main as add
from export.repository import model_folder
from perf.studies.padded import encoders
from perf.studies.padded.record import CLIENT, MODELS, RAGGED, SHIPPED
from perf.studies.ragged.length_mix import LengthMix
from triton_batching.terminal import Failure

# The operators of the shipped encoder are small: two threads are slower.
ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the plain graph of an encoder takes: tokens from 1 to below `vocabulary`, 0 as padding, maybe a `mask`."""

    source: str
    data_type: str
    vocabulary: int
    mask: str = ""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of tokens and mask."""
        return np.dtype(self.data_type.lower())


def taken(kind: str) -> Taken:
    """What an encoder takes, and what it is exported from if that is no file."""
    if kind == SHIPPED:
        return Taken(source="export.models.ragged_encoder:padded", data_type="INT32", vocabulary=8192)
    return Taken(source="", data_type="INT64", vocabulary=encoders.VOCABULARY, mask="mask")


def repository(folder: Path, kind: str, seed: int, device: str = "cpu") -> Path:
    """A repository with the configurations of one encoder, for a cpu or a gpu."""
    encoder = taken(kind)
    source = encoder.source or str(encoders.write(folder / f"{kind}.onnx", kind, seed))
    models = folder / kind
    words = ["--variable-length", "--max-batch-size", "32", "--kind", device, "--repository", str(models)]
    if add([source, "--name", "padded", *words]):
        raise Failure(f"{source}: export.add refused it.")
    home = models / "padded"
    exported = (home / "config.pbtxt").read_text() + (ONE_THREAD if kind == SHIPPED else "")
    unlimited = [line for line in exported.splitlines(keepends=True) if "queue_limit_ms" not in line]
    plain = "".join(line for line in unlimited if "padding_budget" not in line)
    (home / "config.pbtxt").write_text(plain)
    _copy(home, models / "split", "".join(unlimited))
    _copy(home, models / "separate", _separate(plain, encoder))
    if kind == SHIPPED:
        _ragged(models / MODELS[RAGGED])
    return models


def _separate(plain: str, encoder: Taken) -> str:
    """The configuration in which requests of different length share no batch, and clients send the mask."""
    tokens = f'input [ {{ name: "NAME" data_type: TYPE_{encoder.data_type} dims: [ -1 ] }} ]\n'
    kept = plain[plain.index("output [") :].splitlines(keepends=True)
    names = ["tokens", *([encoder.mask] if encoder.mask else [])]
    return "".join(
        [
            'name: "separate"\nbackend: "onnxruntime"\nmax_batch_size: 32\n',
            *(tokens.replace("NAME", name) for name in names),
            *(line for line in kept if not line.startswith(("parameters", "#"))),
            *([ONE_THREAD] if ONE_THREAD in plain else []),
        ]
    )


def _ragged(folder: Path) -> None:
    """The shipped ragged graph with its own configuration, without a limit of its queue."""
    shipped = model_folder(MODELS[RAGGED])
    (folder / "1").mkdir(parents=True)
    shutil.copy(shipped / "1" / "model.onnx", folder / "1" / "model.onnx")
    lines = (shipped / "configs" / "dynamic.pbtxt").read_text().splitlines(keepends=True)
    (folder / "config.pbtxt").write_text("".join(line for line in lines if "queue_limit_ms" not in line))


def _copy(home: Path, folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").hardlink_to(home / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(config.replace('name: "padded"', f'name: "{folder.name}"'))


def requests(kind: str, mix: LengthMix, route: str) -> Sequence[Mapping[str, NDArray[Any]]]:
    """The requests of a mix, one row each; masks only where the client sends them."""
    encoder, rng, made = taken(kind), np.random.default_rng(7), []
    for length in mix.lengths:
        longest = mix.longest if route == CLIENT else length
        tokens = np.zeros((1, longest), dtype=encoder.dtype)
        tokens[:, :length] = rng.integers(1, encoder.vocabulary, length)
        request = {"TOKENS" if route == RAGGED else "tokens": tokens}
        if encoder.mask and MODELS[route] == "separate":
            request[encoder.mask] = (np.arange(longest) < length)[None].astype(encoder.dtype)
        made.append(request)
    return made
