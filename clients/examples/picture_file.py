"""A picture's file as the input of a model that takes pictures as they are stored, and the check that it is one."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.async_model import AsyncModel
from clients.errors import InvalidInputError


def content(picture: Path) -> NDArray[np.object_]:
    """The file's bytes, (1, 1); raises `ValueError` when it cannot be read."""
    try:
        return np.array([[picture.read_bytes()]], dtype=np.object_)
    except FileNotFoundError:
        raise ValueError(f"{picture}: no such file. Give the path of a picture, for example a PNG.") from None
    except OSError as error:
        raise ValueError(f"{picture}: cannot be read ({error.strerror}). Give a PNG or JPEG.") from error


def require(model: AsyncModel, outputs: tuple[str, ...], example: str) -> None:
    """Raise `InvalidInputError` unless the model takes stored pictures and gives `outputs`, as `example` does."""
    takes = tuple(tensor.datatype for tensor in model.metadata.inputs)
    gives = tuple(tensor.name for tensor in model.metadata.outputs)
    if takes != ("BYTES",) or gives != outputs:
        raise InvalidInputError(
            f"'{model.metadata.name}' takes {', '.join(takes)} and gives {', '.join(gives)}, where one input of BYTES "
            f"and {', '.join(outputs)} are needed. Name a model like {example} with --model.",
            model=model.metadata.name,
        )
