"""Predictions of the simulation compared with a real server."""
