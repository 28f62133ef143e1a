"""The shared memory of clients that were killed: it is unregistered, so that the server gives the memory back.

Clients name their regions after their process (clients/_shared_memory.py): the boot and the process namespace, the
number, and the start. What belongs to another namespace is left alone, since nobody can judge it here.
"""

import contextlib
import functools
import hashlib
import re
from pathlib import Path

from serve.management import api

SWEEP_S = 5.0
"""How often the supervisor looks."""

TIMEOUT_S = 2.0
_NAME = re.compile(r"triton_client_([0-9a-f]{12})_(\d+)_(\d+)_[0-9a-f]+")


def sweep(http_url: str) -> None:
    """Unregister the regions of ended processes on the server at `http_url` (host:port)."""
    with contextlib.suppress(api.ServerError):
        status = api.call(http_url, "systemsharedmemory/status", expected=list, timeout_s=TIMEOUT_S)
        for region in status:
            if is_stale(str(region.get("name"))):
                path = f"systemsharedmemory/region/{region['name']}/unregister"
                api.call(http_url, path, {}, expected=type(None), timeout_s=TIMEOUT_S)


def is_stale(name: str) -> bool:
    """Whether the name is that of a region whose process, of this boot and namespace, has ended."""
    match = _NAME.fullmatch(name)
    return match is not None and match[1] == _host() and _start_of(match[2]) != match[3]


@functools.cache
def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return hashlib.blake2s(f"{boot} {namespace}".encode(), digest_size=6).hexdigest()


def _start_of(pid: str) -> str:
    """When a process started, in clock ticks since the boot; "" if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
