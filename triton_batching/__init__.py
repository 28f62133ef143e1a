"""The command `triton-batching`, and what every stage needs of the machine: the terminal, whole files, processes."""
