"""A soak: many kinds of client at once on a real server for a long time, every reply checked, every growth judged."""
