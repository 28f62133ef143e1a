"""Fills a model's tensors: from a PyTorch state-dict file, or by chance from a seed."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def load(model: Model, weights: Path, advice: str) -> Model:
    """Fill `model` from the file `weights` and return it in eval mode.

    Names may carry the "module." prefix that nn.DataParallel adds. `advice` is the last sentence of the error
    for a tensor that does not fit: what the user can do about it.

    Raises ValueError, naming the file, when it cannot be read as a state dict, or when a tensor is missing,
    left over or of another shape; the model is unchanged then.
    """
    found = _read(weights)
    wanted = model.state_dict()
    # Old files (before PyTorch 0.4.1) have no batch counters; inference never reads them.
    for name, tensor in wanted.items():
        if name.endswith(".num_batches_tracked"):
            found.setdefault(name, tensor)
    problem = _first_misfit(wanted, found)
    if problem is not None:
        raise ValueError(f"{weights}: {problem}. {advice}")
    model.load_state_dict(found)
    return model.eval()


def fill_randomly(model: Model, seed: int) -> Model:
    """Draw the weights of `model` from `seed` (He et al., ICCV 2015) and return it in eval mode.

    PyTorch's own default shrinks the signal from layer to layer until all inputs give the same answer within
    1e-4, and no comparison of answers could fail.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model.eval()


def damp(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """The last norm of a residual branch, made weak, so that random blocks do not double the signal each.

    With 0.3 the answers of random models are of the order of 1 to 10 (ResNet-50: 1,458 without).
    """
    nn.init.constant_(norm.weight, 0.3)
    return norm


def _read(weights: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without the "module." prefix."""
    try:
        # weights_only: a downloaded file must not be able to run code.
        content = torch.load(weights, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{weights}: no such file. Give the path of a state dict saved with torch.save.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{weights}: not a readable PyTorch state dict ({first_line}). "
            "Save one with torch.save(model.state_dict(), path) or download the file again."
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(
            f"{weights}: holds {_describe(content)}, not a state dict (tensors by name). "
            "Save the model's tensors alone with torch.save(model.state_dict(), path)."
        )
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def _describe(content: object) -> str:
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}"
    return "a dictionary with the entries " + ", ".join(f'"{name}"' for name in list(content)[:4])


def _first_misfit(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str | None:
    """The first tensor that does not fit, in the model's own order, as half a sentence; None when all fit."""
    for name, tensor in wanted.items():
        if name not in found:
            return f'tensor "{name}" is missing: the model needs shape {list(tensor.shape)}, the file has none'
        if found[name].shape != tensor.shape:
            return f'tensor "{name}" has shape {list(found[name].shape)}, the model needs {list(tensor.shape)}'
    for name, tensor in found.items():
        if name not in wanted:
            return f'tensor "{name}" of shape {list(tensor.shape)} is left over: the model has none of that name'
    return None
