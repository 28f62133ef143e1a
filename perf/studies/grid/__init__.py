"""A full grid of configurations, to compare the tuner's choice with."""
