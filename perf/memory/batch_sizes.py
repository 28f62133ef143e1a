"""The batch sizes of an estimate."""

from collections.abc import Sequence


def batches(text: str) -> Sequence[int]:
    """The batch sizes in a text: `1..32` (both ends and the powers of two between) or `1,3,24`, the smallest first.

    Raises `ValueError`.
    """
    first, dots, last = text.partition("..")
    if not dots:
        sizes = sorted({int(size) for size in text.split(",")})
    else:
        low, high = int(first), int(last)
        sizes = sorted({size for size in (2**power for power in range(high.bit_length())) if size >= low} | {low, high})
    if min(sizes) < 1 or (dots and int(first) > int(last)):
        raise ValueError(text)
    return sizes
