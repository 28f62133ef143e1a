"""Readers of the memory traces that frameworks write."""
