"""A real tritonserver, from PATH or from pip, started right and stopped clean."""
