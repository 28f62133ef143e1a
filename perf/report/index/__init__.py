"""The index of all records of a machine, with a page for each."""
