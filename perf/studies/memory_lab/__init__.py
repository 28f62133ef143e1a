"""Memory allocators compared on recorded inferences."""
