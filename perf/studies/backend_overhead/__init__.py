"""The time that our Python backend adds to an execution."""
