"""Shows a running server live: its counters and metrics, by the second and for the last hour."""
