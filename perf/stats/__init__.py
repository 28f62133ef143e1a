"""Statistics of measurements: intervals, percentiles, tests."""
