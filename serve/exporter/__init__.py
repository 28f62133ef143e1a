"""Metrics of every model's batches for Prometheus, beside those of Triton."""
