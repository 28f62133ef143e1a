"""A running server's admin APIs, statistics, metrics and traces: who may use them, and what they say."""
