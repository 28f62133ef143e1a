"""What the Python backend adds to an execution."""
