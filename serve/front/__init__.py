"""The front door: Envoy before the replicas of a model, configured from one description."""
