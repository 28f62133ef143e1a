"""Follows the paths through `execute` of a model.py with lists of known length; nothing is imported or run."""
