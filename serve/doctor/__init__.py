"""The doctor: every batching mistake of a model repository, found before the server starts."""
