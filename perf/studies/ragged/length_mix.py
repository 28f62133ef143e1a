"""Mixes of lengths, and the padding of batches of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Prime, so that other requests are in flight together in each turn.
REQUESTS = 61
DRAWS = 200


@dataclass(frozen=True, kw_only=True)
class LengthMix:
    """Lengths of requests, sent in turn: tokens of a text or columns of a crop."""

    name: str
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """The longest length, to which a client pads."""
        return max(self.lengths)


def equal(length: int) -> LengthMix:
    """All of one length, which shows the cost of ragged batching without padding."""
    return LengthMix(name="equal", lengths=(length,) * REQUESTS)


def uniform(shortest: int, longest: int, name: str = "uniform") -> LengthMix:
    """Every length between the two equally often."""
    lengths = np.random.default_rng(1).permutation(np.linspace(shortest, longest, REQUESTS).round().astype(int))
    return LengthMix(name=name, lengths=tuple(lengths.tolist()))


def long_tail(median: int, shortest: int, longest: int, name: str = "long tail") -> LengthMix:
    """Log-normal with sigma 1: most are short and a few very long, like search queries and user texts."""
    lengths = np.random.default_rng(2).lognormal(np.log(median), 1.0, REQUESTS).round().clip(shortest, longest)
    return LengthMix(name=name, lengths=tuple(lengths.astype(int).tolist()))


def wasted(mix: LengthMix, batches: Mapping[int, int]) -> float:
    """The share of padding if batches are padded to their longest; `batches` maps requests per execution to executions.

    The server counts how many items ran together, but not which. So each execution is the mean over `DRAWS` seeded
    random choices from the mix.
    """
    rng = np.random.default_rng(0)
    own = computed = 0.0
    for size, executions in batches.items():
        for _ in range(DRAWS):
            # A batch larger than the mix repeats it.
            turns = [rng.permutation(mix.lengths) for _ in range(-(-size // len(mix.lengths)))]
            lengths = np.concatenate(turns)[:size].tolist()
            own += executions * sum(lengths)
            computed += executions * size * max(lengths)
    return 1 - own / computed if computed else 0.0
