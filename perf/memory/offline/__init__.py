"""Offsets planned with all lifetimes known: the planners, the checker that shares nothing with them, and instances."""
