"""Prometheus, its rules and a Grafana dashboard for servers of this project."""
