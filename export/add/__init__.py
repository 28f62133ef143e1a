"""Adds a model to a repository: its batch axis proved, its configuration written with a reason for every choice."""
