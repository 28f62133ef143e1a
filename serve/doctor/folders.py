"""What lies in a folder, without errors for what cannot be read."""

from pathlib import Path

# Folders that are models to tritonserver only, besides hidden ones.
STRANGERS = ("__pycache__", "lost+found")


def entries(folder: Path) -> list[Path]:
    """The paths in a folder, sorted; empty if it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def is_stranger(path: Path) -> bool:
    """Whether the folder is a model to tritonserver only."""
    return path.name.startswith(".") or path.name in STRANGERS


def is_folder(path: Path) -> bool:
    """Whether the path is a folder, also behind links; False for a loop of links or without permission."""
    try:
        return path.is_dir()
    except OSError:
        return False
