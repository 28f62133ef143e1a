"""JSON text, read with an error that says line and column."""

import json
from typing import Any

from triton_batching.terminal import Mistake


def parsed(data: bytes, origin: str) -> Any:
    """The value; raises `Mistake`."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise Mistake(
            f"{origin}:{error.lineno}:{error.colno}: not JSON: {error.msg}. The file is cut or is none; write it again."
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise Mistake(f"{origin}: not JSON: {error}. Write it again.") from error
