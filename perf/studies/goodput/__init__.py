"""Goodput: the highest arrival rate at which nearly all requests are answered in time, simulated and on a server."""
