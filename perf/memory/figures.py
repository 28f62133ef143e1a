"""The figures of an estimate as text: one number if it is exact, else a range or "or more"."""

from collections.abc import Callable

from perf.memory.estimate.batch_memory import BatchMemory, LiveTensor
from perf.memory.estimate.timeline import Lifetime

MIB = 2**20


def number(size: int) -> str:
    """`3.12`, in MiB."""
    return f"{size / MIB:,.2f}"


def mib(size: int) -> str:
    """`3.12 MiB`; small sizes in KiB."""
    return f"{number(size)} MiB" if size >= MIB / 100 else f"{size / 1024:,.2f} KiB"


def span(least: int, most: int | None, text: Callable[[int], str] = number) -> str:
    """A size, with its upper bound if it is not exact."""
    if most is None:
        return f"{text(least)} or more"
    return text(least) if most == least else f"{text(least)} to {text(most)}"


def spans(memory: BatchMemory, text: Callable[[int], str] = number) -> tuple[str, str, str, str]:
    """The weights, the activations, what the arena holds for them, and all."""
    most = memory.most
    return (
        span(memory.weights, most.weights if most else None, text),
        span(memory.activations_peak, most.activations_peak if most else None, text),
        span(memory.arena_held, most.arena_held if most else None, text),
        span(memory.held, memory.held_most, text),
    )


def is_exact(memory: BatchMemory) -> bool:
    """Whether what is held is known to the byte."""
    return memory.held_most == memory.held


def saved(memory: BatchMemory) -> str:
    """The share of the arena that an offset plan saves; empty if the arena is not exact."""
    share = 1 - memory.packed / memory.arena_held if memory.arena_held else 0.0
    return f"{share:.0%}" if is_exact(memory) else ""


def label(live: LiveTensor | Lifetime) -> str:
    """The name of a tensor or of a kernel's scratch."""
    return f"scratch for {live.tensor}" if live.scratch else live.tensor


def peak(memory: BatchMemory) -> list[tuple[str, str, str]]:
    """The name, size and share of each tensor that is live at the peak, the largest first."""
    total = sum(live.bytes for live in memory.live) or 1
    return [(label(live), number(live.bytes), f"{live.bytes / total:.0%}") for live in memory.live]
