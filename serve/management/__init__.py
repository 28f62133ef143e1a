"""Everything that is read from a running server or set on it: admin APIs, statistics, metrics, traces."""
