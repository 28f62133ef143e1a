"""The command `triton-batching`, and modules for every stage: terminal, whole files, processes, machine."""
