"""Adds a model to a repository: proves the batch axis, writes the configuration with a reason for every choice."""
