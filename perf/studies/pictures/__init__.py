"""Pictures classified without and with dynamic batching."""
