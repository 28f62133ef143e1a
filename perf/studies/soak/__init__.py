"""A soak: many kinds of client on one real server for a long time, with every reply and every growth checked."""
