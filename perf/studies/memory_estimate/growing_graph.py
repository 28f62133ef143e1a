"""A graph that grows by random operators, each on tensors that are there."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from perf.studies.memory_estimate.zoo import Builder

# Elements of a row: enough for several regions of an arena, and fast.
MOST_ITEMS = 24_000
INPUTS: Sequence[tuple[int, ...]] = ((3, 24, 24), (8, 16, 16), (16, 9, 13), (12, 32), (20, 16), (64,), (300,))
Dims = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A float tensor of a graph; `dims` are those after the batch."""

    name: str
    dims: Dims


class RandomGraph:
    """Adds operators to a graph, each on tensors that are there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.net = Builder(seed)
        self.inputs = [Tensor(name=f"x{at}", dims=dims) for at, dims in enumerate(self.rng.sample(INPUTS, k=2))]
        self.tensors = list(self.inputs)
        # Most graphs have only kernels that are known to the byte.
        self.flows, self.unknown = self.rng.random() < 0.25, self.rng.random() < 0.1

    def grow(self, operators: int, among: "Mapping[int, Sequence[Operator]]") -> None:
        """Add at least so many operators, of those for the number of dimensions after the batch."""
        while len(self.net.nodes) < operators:
            # Mostly a new tensor goes on, so that the graph is deep.
            source = self.rng.choice(self.tensors[-4:] if self.rng.random() < 0.8 else self.tensors)
            made = self.rng.choice(among[len(source.dims)])(self, source)
            self.tensors += [tensor for tensor in made if 0 < math.prod(tensor.dims) <= MOST_ITEMS]

    def model(self) -> onnx.ModelProto:
        """The graph; its outputs are the last tensor and another one."""
        outputs = {"y": self.tensors[-1].name, "z": self.rng.choice(self.tensors).name}
        shapes: dict[str, Sequence[int | str]] = {tensor.name: ["batch", *tensor.dims] for tensor in self.inputs}
        return self.net.model("random", shapes, outputs)

    def add(self, kind: str, *inputs: str, dims: Dims, **attributes: Any) -> list[Tensor]:
        """Add a node with one output of these dimensions."""
        return [Tensor(name=self.net.node(kind, *inputs, **attributes), dims=dims)]

    def twin(self, source: Tensor) -> Tensor:
        """Another tensor of the same shape; the same one if there is none."""
        return self.rng.choice([tensor for tensor in self.tensors if tensor.dims == source.dims])


Operator = Callable[[RandomGraph, Tensor], list[Tensor]]
