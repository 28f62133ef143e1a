"""Measures a served model: perf_analyzer sweeps, ramps and service times, single trials."""

from pathlib import Path

# The folder of the ramps, here because a program's `--help` names it. `perf.tune` writes its ramps here too.
RESULTS = Path("perf/results/local/tune")
