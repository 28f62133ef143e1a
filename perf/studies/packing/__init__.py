"""Packing algorithms on seeded workloads, against the proven fewest devices."""
