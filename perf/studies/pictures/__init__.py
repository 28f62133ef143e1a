"""Pictures classified without and with dynamic batching, as grps' benchmark does it."""
