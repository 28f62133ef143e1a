"""Keeps freed memory in this process, because new pages for each batch cost more than the batch's copy.

Triton's stub copies every input of a request into a new array before `execute`, and frees all of them after it. glibc
then returns the free end of the heap to the system, and the next batch touches new pages: measured for 8 requests of
4 MB, the execution took twice as long.
"""

import ctypes
import os
from pathlib import Path

# Of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
"""The free memory that stays; more is returned as before. A process has no more free memory than its batches took."""
LARGEST_BYTES = 32 << 20
"""The largest array whose memory stays, and the highest value that glibc takes."""
STUB = "triton_python_backend_stub"


def keep_freed() -> None:
    """Let a stub keep freed memory, unless its environment already says what malloc keeps."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None or "MALLOC_TRIM_THRESHOLD_" in os.environ or not _is_stub():
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _is_stub() -> bool:
    try:
        return Path("/proc/self/exe").readlink().name == STUB
    except OSError:
        return False
