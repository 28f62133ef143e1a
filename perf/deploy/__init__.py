"""Deploys a new configuration to a running cluster: a canary beside a control, and a verdict."""
