"""Which requests of different length run together, by the server's counters."""
