"""Memory traces: the type, its file, and readers of what frameworks write."""
