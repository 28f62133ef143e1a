"""Threads that work beside the caller, and end with the program."""

import sys
import threading
from collections.abc import Callable
from typing import Any


def begin(name: str, work: Callable[..., Any], *arguments: Any) -> bool:
    """Do the work on a thread; False if none can begin: the interpreter ends, or the system has no thread left.

    A generator that a program has not closed is closed then. Python 3.11 would wait for ever for the thread to begin,
    and 3.12 raises.
    """
    if sys.is_finalizing():
        return False
    try:
        threading.Thread(target=work, args=arguments, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True
