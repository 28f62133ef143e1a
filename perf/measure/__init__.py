"""Measures a served model: perf_analyzer sweeps, ramps and service times, single trials."""
