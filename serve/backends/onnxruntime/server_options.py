"""tritonserver's own command line, read from the process that started this one.

`--backend-config=onnxruntime,KEY=VALUE` reaches C++ backends only, so this reads it where it was written.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

FLAG = "--backend-config"
BACKEND = "onnxruntime"
DEFAULT_MAX_BATCH_SIZE = 4


def backend_options(arguments: Sequence[str] | None = None) -> dict[str, str]:
    """Settings for this backend and, below them, for all backends; {} when the command line cannot be read."""
    given = list(_command_line() if arguments is None else arguments)
    values = [one.removeprefix(f"{FLAG}=") for one in given if one.startswith(f"{FLAG}=")]
    values += [after for flag, after in itertools.pairwise(given) if flag == FLAG]
    found: dict[str, dict[str, str]] = {"": {}, BACKEND: {}}
    for value in values:
        setting, _, text = value.partition("=")
        backend, _, key = setting.rpartition(",")
        if backend in found:
            found[backend][key] = text
    return found[""] | found[BACKEND]


def default_max_batch_size(options: dict[str, str]) -> int:
    """The limit that a model gets whose graph can batch and whose configuration has none; 0 leaves batching off."""
    text = options.get("default-max-batch-size", "")
    return max(0, int(text)) if text.lstrip("-").isdigit() else DEFAULT_MAX_BATCH_SIZE


def _command_line() -> list[str]:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
