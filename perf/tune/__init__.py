"""From a latency target to a configuration: profile the model, simulate every candidate, verify the best few live."""
