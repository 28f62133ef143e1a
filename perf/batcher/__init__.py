"""Triton's dynamic batcher as a discrete-event simulation: rules from a configuration, requests in, executions out."""
