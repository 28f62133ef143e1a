"""What a configuration would do under a load: the simulated batcher with the service times of this machine."""
