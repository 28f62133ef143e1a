"""Triton's dynamic batcher as a discrete-event simulation: from a configuration and requests to executions."""
