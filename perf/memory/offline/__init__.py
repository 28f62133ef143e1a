"""Offline planning of memory offsets with all lifetimes known: planners, their checker, and instances as CSV files."""
