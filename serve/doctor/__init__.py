"""The doctor: finds batching mistakes in a model repository before the server does."""
