"""How much memory a model takes at each batch size, measured in a process of its own."""

from pathlib import Path

RESULTS = Path("perf/results/local/memory")
"""Where `triton-batching memory` keeps its records, and where `tune` and `pack` look for them."""
