"""What is wrong with records whose reading or drawing failed, in a sentence."""

from pathlib import Path

from perf.records import file
from triton_batching.terminal import Mistake


def sentence(error: Exception, path: Path) -> str:
    """The sentence for an error; it leaves out `path`, which stands beside it.

    A record has its types, and yet any value: what computes with it may fail in any way.
    """
    if isinstance(error, Mistake):
        return str(error).removeprefix(f"{path}: ")
    if isinstance(error, OSError):
        return unreadable(error)
    return f"its values do not fit together ({error!r}). {file.REMEDY}"


def unreadable(error: OSError) -> str:
    """The sentence for a file that the system does not let us read."""
    return f"{error.filename or 'a file of it'} cannot be read ({error.strerror})"
