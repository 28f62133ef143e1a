"""Counts the servers that a program of a test starts (see starts.py)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
import starts

sys.path.pop()
starts.count()
