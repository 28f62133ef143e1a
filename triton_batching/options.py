"""Readers of option values with limits, for argparse's `type=`: a wrong value is one line before any work begins."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

# Limits that several programs share, all far above what a machine can run.
MOST_CLIENTS = 4096
MOST_ROWS = 65_536
MOST_INSTANCES = 512
MOST_THREADS = 1024
MOST_ROUNDS = 1000
MOST_SEED = 2**32 - 1
DAY_S = 86_400


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most:,}")
        return value

    return read


def above_0(most: float) -> Callable[[str], float]:
    """A reader of numbers above 0, up to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a number above 0, up to {most:,}")
        return value

    return read


def path(text: str) -> Path:
    """A reader of paths: an empty text is no path, though `Path` takes it as the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty. Name a path, or . for the current folder")
    return Path(text)
