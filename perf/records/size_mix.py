"""A mix of request sizes in words, as users give it with `--mix`: lengths of texts, or widths of crops.

20,30*2,40    20, 30, 30, 40 (perf.why sends them in turn, every load in a drawn order)
8:64          every size from 8 to 64, equally often
file:SIZES    the sizes in a file, for example those of yesterday's requests, whole numbers, one a line

Each size takes the place of every -1 in the dims of a request's inputs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_batching.terminal import Mistake

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

# What a user may give, and how many sizes of it a load sends and has on record.
MOST_SIZES, MOST_SIZE, MOST_SENT = 1_000_000, 1_000_000, 256
FILE = "file:"
FORM = "Write sizes (20,30,40 or 20*3,30), all from one to another (8:64), or file:SIZES, one a line."


class MixError(Mistake):
    """The text is no mix, or the model takes none."""


@dataclass(frozen=True, kw_only=True)
class SizeMix:
    """A mix in words; a file that it names is read when its sizes are asked for."""

    text: str

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes one by one; raises `MixError` for a text that is no mix."""
        if self.text.startswith(FILE):
            return _of_file(self.text, self._content)
        try:
            sizes = _range(self.text) if ":" in self.text else _list(self.text)
        except ValueError as error:
            raise MixError(f"--mix {self}: not a mix of sizes. {FORM}") from error
        if not sizes:
            raise MixError(f"--mix {self}: sizes are 0 or more, counts 1 or more, and {MOST_SIZES:,} at most. {FORM}")
        return _bounded(self.text, sizes)

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of its file, empty if it names none; raises `MixError` for one that cannot be read."""
        return hashlib.sha256(self._content).hexdigest() if self.text.startswith(FILE) else ""

    @functools.cached_property
    def _content(self) -> bytes:
        try:
            return Path(self.text.removeprefix(FILE)).read_bytes()
        except OSError as error:
            raise MixError(
                f"--mix {self}: the file cannot be read ({error.strerror}). Write one whole number a line."
            ) from error

    def __str__(self) -> str:
        return self.text

    @property
    def title(self) -> str:
        """The text with a digest of the sizes that are sent, for a record."""
        return f"mix {self} {digest(self.sent)}"

    @property
    def sent(self) -> tuple[int, ...]:
        """The sizes that a load sends: all of them, or `MOST_SENT` that are evenly spaced among them by size."""
        return self.sizes if len(self.sizes) <= MOST_SENT else _spread(self.sizes, MOST_SENT)

    def check(self, config: ModelConfig) -> SizeMix:
        """Return itself; raises `MixError` for a text that is no mix, and a model whose requests all have one size."""
        if self.sizes and not any(-1 in tensor.dims for tensor in config.input):
            raise MixError(
                f'--mix {self}: model "{config.name}" takes no input of variable size (no -1 in dims), so it takes no '
                "sizes. Leave --mix out."
            )
        return self


def add_option(parser: argparse.ArgumentParser | argparse._ArgumentGroup, more: str = "") -> None:
    """Add `--mix`, the text of a `SizeMix`, with `more` at the end of its help."""
    parser.add_argument(
        "--mix",
        metavar="SIZES",
        help="sizes of the requests, put in place of each -1 in dims: 20,30*2,40 is 20, 30, 30, 40 (perf.why sends "
        "them in turn, every load in a drawn order), 8:64 is all of them, file:SIZES has one a line" + more,
    )


def asked(arguments: argparse.Namespace, config: ModelConfig) -> SizeMix | None:
    """The mix of the command line for this model; None without `--mix`. Raises `MixError`."""
    return None if arguments.mix is None else SizeMix(text=arguments.mix).check(config)


def digest(sizes: Sequence[int]) -> str:
    """The start of the SHA-256 of sizes, which tells files of the same name apart."""
    return hashlib.sha256(" ".join(map(str, sizes)).encode()).hexdigest()[:8]


def drawn(sizes: tuple[int, ...], count: int, seed: int) -> list[int]:
    """`count` sizes with the shares that they have in `sizes`, in an order drawn from the seed."""
    turns, rest = divmod(count, len(sizes))
    chosen = [*sizes * turns, *(_spread(sizes, rest) if rest else ())]
    random.Random(seed).shuffle(chosen)
    return chosen


def _spread(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`count` of the sizes, evenly spaced among them by size, so that short and long ones keep their shares."""
    ordered = sorted(sizes)
    return tuple(ordered[(2 * number + 1) * len(ordered) // (2 * count)] for number in range(count))


def _bounded(text: str, sizes: Sequence[int]) -> tuple[int, ...]:
    if (largest := max(sizes)) > MOST_SIZE:
        raise MixError(f"--mix {text}: {largest:,} is too large. A size is at most {MOST_SIZE:,}.")
    return tuple(sizes)


def _list(text: str) -> list[int]:
    parts = [part.partition("*") for part in text.split(",")]
    sizes = [(int(size), int(times or 1)) for size, _, times in parts]
    if any(size < 0 or times < 1 for size, times in sizes) or sum(times for _, times in sizes) > MOST_SIZES:
        return []
    return [size for size, times in sizes for _ in range(times)]


def _range(text: str) -> list[int]:
    least, most = map(int, text.split(":"))
    sizes = list(range(least, most + 1)) if least >= 0 and most - least < MOST_SIZES else []
    random.Random(0).shuffle(sizes)
    return sizes


def _of_file(text: str, content: bytes) -> tuple[int, ...]:
    try:
        sizes = [int(line) for line in content.decode().split()]
    except ValueError as error:
        raise MixError(f"--mix {text}: not a file of sizes ({error}). Write one whole number a line.") from error
    if not sizes or min(sizes) < 0 or len(sizes) > MOST_SIZES:
        raise MixError(f"--mix {text}: holds no sizes, one below 0, or more than {MOST_SIZES:,}. Keep a part of them.")
    return _bounded(text, sizes)
