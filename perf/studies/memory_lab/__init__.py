"""Memory allocators compared over recorded traces."""
