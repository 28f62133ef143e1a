"""Overload: what a configuration answers, refuses and uses while far more is sent than it can run."""
