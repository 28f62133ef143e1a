"""Calls torch's ONNX exporter with our own tensor names, a dynamic batch axis and one output file."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from export.graph.recipe import Recipe


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings, which do not help a user; failures still raise."""
    for logger in ("torch.onnx", "onnx_ir", "torch.export", "torch._guards"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(
    module: nn.Module, recipe: Recipe, path: Path, *, input_name: str, output_name: str, dims: tuple[int, ...]
) -> None:
    """Export `module`, which takes one FP32 tensor (batch, *dims), to one file with a dynamic batch axis."""
    # Two rows, because the exporter fixes the batch axis to 1 for an example of one row.
    inputs = {input_name: torch.zeros(2, *dims)}
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    write_file(module, recipe, path, inputs=inputs, output_name=output_name, dynamic_shapes=shapes)


def write_file(
    module: nn.Module,
    recipe: Recipe,
    path: Path,
    *,
    inputs: Mapping[str, Tensor],
    output_name: str,
    dynamic_shapes: tuple[Mapping[int, Any], ...],
) -> None:
    """Export `module` to one file; `inputs` are examples by name, in the order of `forward`.

    `dynamic_shapes` has one entry per input: axis -> `torch.export.Dim`.
    """
    with quiet():
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=[output_name],
            dynamic_shapes=dynamic_shapes,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    model = onnx.load(path)
    recipe.stamp(model)
    onnx.save(model, path)


class Reference:
    """The torch module as a function of named arrays, for comparison with the exported file."""

    def __init__(self, module: nn.Module, *, input_name: str, output_name: str) -> None:
        self._module = module.eval()
        self._input, self._output = input_name, output_name
        self.parameters = sum(tensor.numel() for tensor in module.parameters())

    def __call__(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run without gradients."""
        with torch.inference_mode():
            return {self._output: self._module(torch.from_numpy(inputs[self._input])).numpy()}
