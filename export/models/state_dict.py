"""Fills a model's tensors from a PyTorch state-dict file, or with random values from a seed."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def load(model: Model, weights: Path, advice: str) -> Model:
    """Fill `model` from the file `weights` and return it in eval mode.

    Names may have the prefix "module." that nn.DataParallel adds. `advice` ends the error for a tensor that does not
    fit: what the user can do.

    Raises ValueError with the file's name if it is not a state dict, or if a tensor is missing, surplus or of another
    shape. The model is then unchanged.
    """
    tensors = _read(weights)
    expected = model.state_dict()
    # Old files (before PyTorch 0.4.1) have no batch counters; inference never reads them.
    for name, tensor in expected.items():
        if name.endswith(".num_batches_tracked"):
            tensors.setdefault(name, tensor)
    problem = _first_misfit(expected, tensors)
    if problem is not None:
        raise ValueError(f"{weights}: {problem}. {advice}")
    model.load_state_dict(tensors)
    return model.eval()


def fill_randomly(model: Model, seed: int) -> Model:
    """Draw the weights of `model` from `seed` (He et al., ICCV 2015) and return it in eval mode.

    With PyTorch's default the signal shrinks from layer to layer. All inputs then give the same answer within 1e-4, and
    a comparison of answers could not fail.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model.eval()


def damp(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Make the last norm of a residual branch weak, so that random blocks do not each double the signal.

    With 0.3 the answers of random models are between about 1 and 10 (ResNet-50: 1,458 without).
    """
    nn.init.constant_(norm.weight, 0.3)
    return norm


def _read(weights: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without the "module." prefix."""
    try:
        # weights_only, because a downloaded file must not run code.
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
            "Save only the model's tensors with torch.save(model.state_dict(), path)."
        )
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def _describe(content: object) -> str:
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}"
    return "a dictionary with the entries " + ", ".join(f'"{name}"' for name in list(content)[:4])


def _first_misfit(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the first tensor that does not fit, in the model's order; None if all fit."""
    for name, tensor in expected.items():
        if name not in tensors:
            return f'tensor "{name}" is missing: the model needs shape {list(tensor.shape)}, the file has none'
        if tensors[name].shape != tensor.shape:
            return f'tensor "{name}" has shape {list(tensors[name].shape)}, the model needs {list(tensor.shape)}'
    for name, tensor in tensors.items():
        if name not in expected:
            return f'tensor "{name}" of shape {list(tensor.shape)} is not used: the model has none of that name'
    return None
