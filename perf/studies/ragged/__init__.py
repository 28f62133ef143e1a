"""Ways to serve requests of different length, compared."""
