"""Readers of option values with limits, for argparse's `type=`: a wrong value is one line before any work begins."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from triton_batching.terminal import Mistake

# Limits that several programs share, all far above what a machine can run.
MOST_CLIENTS = 4096
MOST_ROWS = 65_536
MOST_INSTANCES = 512
MOST_THREADS = 1024
MOST_ROUNDS = 1000
MOST_REPLICAS = 1000
MOST_SEED = 2**32 - 1
DAY_S = 86_400


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A reader of an option's value, for argparse: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text} is not a whole number from {least} to {most:,}")
        return value

    return read


def number(*, above: float = -math.inf, least: float = -math.inf, most: float) -> Callable[[str], float]:
    """A reader of an option's value, for argparse: a number above `above`, not below `least`, and at most `most`."""
    bound = f"above {above:.12g}" if above > least else f"from {least:.12g}"
    end = f"{'and at most' if above > least else 'to'} {most:,}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (above < value <= most and least <= value):
            raise ArgumentTypeError(f"{text} is not a number {bound} {end}")
        return value

    return read


def refuse_unused(*options: tuple[bool, str, str]) -> None:
    """Raise `Mistake` for the first (is unused, option, why) that is unused, so that no option is ignored silently."""
    for is_unused, option, why in options:
        if is_unused:
            raise Mistake(f"{option} does nothing {why}. Leave it out.")


def path(text: str) -> Path:
    """The path that an option names; raises `ArgumentTypeError` for an empty one, which would be the current folder."""
    if not text:
        raise ArgumentTypeError("the path is empty. Name one, or . for the current folder")
    return Path(text)
