"""Compares two sets of measurements: ratios with intervals, and a verdict."""
