"""The settings of the model to add, and the checks of their values."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from export.graph.input_values import Range

Batching = Literal["dynamic", "none"]
Kind = Literal["cpu", "gpu"]

# Names that need no quoting in a URL, in a shell and in tritonserver's --load-model.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# In a shorter time nothing arrives to join the batch; with a longer one a lone request waits more than a second.
SHORTEST_TIMEOUT_US, LONGEST_TIMEOUT_US = 100, 1_000_000
LARGEST_BATCH, MOST_INSTANCES = 65_536, 64
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
    The values are not checked before `faults` is called.
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

    def faults(self) -> Iterator[tuple[str, str]]:
        """Every field with an invalid value, with the reason and what to write: (field, reason)."""
        if not NAME.fullmatch(self.name):
            reason = (
                f"'{self.name}' cannot name a model: the name is a folder, part of URLs and a flag of tritonserver. "
                "Use letters, digits, '_', '-' and '.', and begin with a letter or a digit."
            )
            yield "name", reason
        yield from _whole("max_batch_size", self.max_batch_size, "rows in one execution", LARGEST_BATCH)
        yield from _whole("instances", self.instances, "executions at the same time", MOST_INSTANCES)
        if self.batch_timeout_us is not None and (reason := _wrong_timeout(self.batch_timeout_us)):
            yield "batch_timeout_us", reason
        if self.opset is not None:
            yield from _whole("opset", self.opset, "a version of ONNX's operators", 99)
        if self.masks and not self.variable_length:
            yield "mask", "no mask is made without --variable-length. Write that as well, or leave it out."
        if self.pad_values and not self.variable_length:
            yield "pad_value", "nothing is padded without --variable-length. Write that as well, or leave it out."
        if self.variable_length and self.batching == "none":
            yield "variable_length", "without batching requests never share a batch. Leave one of the two out."
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            reason = (
                f"{self.tolerance} is not between 0 and 1: it is the largest difference of a batch from its rows, as "
                "a share of what an element varies by over the rows. Write for example 0.001."
            )
            yield "tolerance", reason


def _whole(name: str, value: int, meaning: str, largest: int) -> Iterator[tuple[str, str]]:
    if not 1 <= value <= largest:
        yield name, f"{value} is not from 1 to {largest}: it is {meaning}. Write a number in that range."


def _wrong_timeout(value: int) -> str:
    """Why a timeout is invalid; "" if it is valid."""
    if value <= 0:
        return (
            f"{value} is not a time to wait. Leave it out for no delay: requests that arrive while an execution runs "
            "form the next batch anyway."
        )
    if value < SHORTEST_TIMEOUT_US:
        return (
            f"{value} microseconds ({value / 1000:g} ms) are too short for another request to arrive. For {value} ms "
            f"write {value * 1000}; for no delay leave it out."
        )
    if value > LONGEST_TIMEOUT_US:
        return (
            f"{value} microseconds: a lone request would wait {value / 1e6:g} s before it runs. For {value / 1e6:g} ms "
            f"write {value // 1000}."
        )
    return ""
