"""Ways to serve requests of different length, side by side."""
