"""Says what malloc does with freed memory: what loading a model frees is returned, what batches free is kept.

onnxruntime reads a model's weights into memory, copies them, and frees what it read. glibc would keep that between the
copies, more or less of it at each start: an instance of ResNet-50 held 313 MiB after loading, and holds 162. New pages
make loading 0.2 s longer.

Triton's stub copies every input of a request into a new array before `execute`, and frees all of them after it. glibc
then returns the free end of the heap to the system, and the next batch touches new pages, which cost more than the
copies: measured for 8 requests of 4 MB, the execution took twice as long.
"""

import ctypes
import os
from pathlib import Path

# Of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
VARIABLES = {M_TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_", M_MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_"}
KEPT_BYTES = 256 << 20
"""The free memory that stays; more is returned as before. A process has no more free memory than its batches took."""
LARGEST_BYTES = 32 << 20
"""The largest array whose memory stays, and the highest value that glibc takes."""
RETURNED_BYTES = 128 << 10
"""The smallest array whose memory is returned while a model loads: glibc begins with it, and raises it by itself."""
STUB = "triton_python_backend_stub"


def return_freed() -> None:
    """Let a stub return freed memory, unless its environment sets that option of malloc."""
    _set(M_MMAP_THRESHOLD, RETURNED_BYTES)


def keep_freed() -> None:
    """Let a stub keep freed memory; an option of malloc that its environment sets stays."""
    _set(M_MMAP_THRESHOLD, LARGEST_BYTES)
    _set(M_TRIM_THRESHOLD, KEPT_BYTES)


def _set(option: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None and VARIABLES[option] not in os.environ and _is_stub():
        mallopt(option, value)


def _is_stub() -> bool:
    try:
        return Path("/proc/self/exe").readlink().name == STUB
    except OSError:
        return False
