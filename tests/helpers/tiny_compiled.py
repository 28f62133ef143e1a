"""Compiled models of torch that tests add: TorchScript archives and AOTInductor packages."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

JIT: Any = torch.jit  # it has no types


def traced(module: nn.Module, examples: tuple[Tensor, ...], path: Path) -> Path:
    """Write what torch.jit.trace makes of the module in eval mode."""
    return _saved(lambda: JIT.trace(module.eval(), examples, check_trace=False), path)


def scripted(module: nn.Module, path: Path) -> Path:
    """Write what torch.jit.script makes of the module in eval mode."""
    return _saved(lambda: JIT.script(module.eval()), path)


def _saved(make: Any, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(make(), path)
    return path


class Sine(nn.Module):
    """One kernel, which compiles fast."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * 2


def flat_package(path: Path, *, open_axis: bool) -> Path:
    """Compile a model of rows of 4 with AOTInductor, for any number of rows or for 2."""
    shapes = ({0: torch.export.Dim("rows", max=64)},) if open_axis else None
    program = torch.export.export(Sine(), (torch.randn(2, 4),), dynamic_shapes=shapes)
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return path
