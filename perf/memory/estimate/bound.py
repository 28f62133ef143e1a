"""The upper bounds of an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Most:
    """The most bytes that three figures of a `BatchMemory` can be; equal to them if they are exact."""

    weights: int
    activations_peak: int
    arena_held: int


def largest(found: Sequence[Most | None]) -> Most | None:
    """The largest of the bounds of each order; None if one of them is."""
    mosts = [most for most in found if most]
    if len(mosts) < len(found):
        return None
    return Most(
        weights=mosts[0].weights,
        activations_peak=max(most.activations_peak for most in mosts),
        arena_held=max(most.arena_held for most in mosts),
    )
