"""Overload: how a configuration answers while far more requests come than it can run."""
