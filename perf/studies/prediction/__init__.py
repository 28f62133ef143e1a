"""The simulation against the real server."""
