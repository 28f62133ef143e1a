"""Finds the configuration for a latency target: profile the model, simulate all candidates, measure the best few."""
