"""Predicts what a configuration does under a load: the simulated batcher with the service times of this machine."""
