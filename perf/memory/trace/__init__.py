"""Traces of memory allocations: one type, and a reader per tool that writes them."""
