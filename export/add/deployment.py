"""The settings of the model to add."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from export.graph.input_values import Range

Batching = Literal["dynamic", "none"]
Kind = Literal["cpu", "gpu"]

# Names that need no quoting in a URL, in a shell and in tritonserver's --load-model.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
VERSION = "1"
"""The version folder that holds the model."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A model to add.

    `source` is an ONNX file, a torch.export file (.pt2) or `module:function`. `batch_timeout_us` is how long the oldest
    request of a batch may wait for others (None: no delay). `ranges` are valid values of inputs; `samples` is an .npz
    file with real rows; `tolerance` bounds the difference of a batch from its rows (None: by the graph's types). With
    `variable_length` requests of different length share a batch, filled with `pad_values` by input (otherwise 0); the
    server makes `masks`. `opset` converts the graph to that version.
    """

    name: str
    source: str
    batching: Batching = "dynamic"
    max_batch_size: int = 16
    batch_timeout_us: int | None = None
    instances: int = 1
    kind: Kind | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    samples: Path | None = None
    tolerance: float | None = None
    variable_length: bool = False
    pad_values: Mapping[str, float] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    opset: int | None = None
