"""A running server as a live page: what its counters and metrics say, second by second, for the last hour."""
