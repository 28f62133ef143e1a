"""The front door: a real proxy before the replicas of a model, configured from one description."""
