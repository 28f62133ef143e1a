"""Everything that only a GPU can show, in one command; a small form of it runs on a CPU."""
