"""Simulates a day of a deployment that scales: its replicas, their hours, and the share of requests in time."""
