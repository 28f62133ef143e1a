"""Starts, supervises and stops a real tritonserver, from PATH or from pip."""
