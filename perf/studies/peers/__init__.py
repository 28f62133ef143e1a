"""Other servers compared with ours, with the same model, machine and callers."""
