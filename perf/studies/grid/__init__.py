"""A full grid of configurations: the judge of the tuner."""
