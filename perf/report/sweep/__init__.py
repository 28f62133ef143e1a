"""The report on the records of sweeps: comparisons of configurations, their tables, figures and verdicts."""
