"""Memory allocators over a simulated device: those of frameworks and textbooks, and one that follows a plan."""
