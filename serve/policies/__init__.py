"""Batching inside a Python model: hooks, policies and the queue's limit, copied beside each model.py that uses them."""
