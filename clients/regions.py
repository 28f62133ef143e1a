"""Regions of shared memory that are registered on a server once and used for many requests.

The file in /dev/shm is unlinked as soon as the server has mapped it; server and client keep their mappings. A client
that is killed before that leaves a file whose name tells its process, and the next client removes it.

Every user of the machine sees the names of the files. A user who knows the name under which a region is registered can
use it in a request, and so read and overwrite the region. So that name is another one, which only this process, its
reaper and the server know.
"""

import contextlib
import functools
import hashlib
import mmap
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "triton_client_"
SMALLEST_BYTES = 1 << 16
LIMIT_BYTES = 1 << 30
"""The limit for all regions of one client; requests beyond it travel in the message."""


class Region:
    """Memory for one request at a time, registered as `name`, which is secret; `file` is its name in /dev/shm.

    `proven` is whether an answer has shown that the server uses the same memory. `heads` has encoded request heads by
    their layout. Raises `OSError` if there is no room in /dev/shm.
    """

    def __init__(self, size: int) -> None:
        self.name, self.file = (f"{PREFIX}{_owner()}_{secrets.token_hex(16)}" for _ in range(2))
        self.size = size
        self.proven = False
        self.heads: dict[object, bytes] = {}
        descriptor = os.open(FOLDER / self.file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Allocates the memory now: otherwise the first write to a full /dev/shm would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            self.memory = mmap.mmap(descriptor, size)
        except OSError:
            self.unlink()
            raise
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the file; mappings of the memory stay valid."""
        with contextlib.suppress(FileNotFoundError):
            (FOLDER / self.file).unlink()

    def close(self) -> None:
        """Unmap the memory."""
        # A view may still exist; then the mapping ends with it.
        with contextlib.suppress(BufferError):
            self.memory.close()


class Ring:
    """The regions of a client: the free ones, last used on top, and the retired ones, which the server may still use.

    Callers hold a lock, except for `create`, which may take long.
    """

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._free: list[Region] = []
        self.retired: list[Region] = []
        self.bytes = 0

    def take(self, size: int) -> Region | None:
        """A free region of at least `size` bytes."""
        for number in range(len(self._free) - 1, -1, -1):
            if self._free[number].size >= size:
                return self._free.pop(number)
        return None

    def give(self, region: Region) -> None:
        """Free the region of a request that was answered."""
        self._free.append(region)

    def create(self, size: int) -> Region | None:
        """A new region, not yet registered; None if there is no room.

        Sizes are rounded up to powers of two, so that growing requests do not need a new region each.
        """
        rounded = _rounded(size)
        with self._counting:
            if self.bytes + rounded > LIMIT_BYTES:
                return None
            self.bytes += rounded
        try:
            return Region(rounded)
        except OSError:
            self._count(-rounded)
            return None

    def outgrown(self, size: int) -> list[Region]:
        """Retire the free regions that are too small for `size` bytes; returns all retired regions."""
        self.retire([region for region in self._free if region.size < _rounded(size)])
        return list(self.retired)

    def retire(self, regions: Iterable[Region]) -> None:
        """Never use these regions again; they are unregistered when no request uses them."""
        for region in list(regions):
            if region in self._free:
                self._free.remove(region)
            self.retired.append(region)

    def discard(self, region: Region) -> None:
        """Remove a region that is not registered."""
        if region in self.retired:
            self.retired.remove(region)
        self._count(-region.size)
        region.unlink()
        region.close()

    def drain(self) -> list[Region]:
        """Retire the free regions; returns all retired regions."""
        self.retire(self._free)
        return list(self.retired)

    def _count(self, more: int) -> None:
        with self._counting:
            self.bytes += more


def _rounded(size: int) -> int:
    return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())


def stale(names: Iterable[str]) -> Iterator[str]:
    """The names that belong to processes of this host that have ended."""
    pattern = re.compile(rf"{PREFIX}{_host()}_(\d+)_(\d+)_[0-9a-f]+")
    for name in names:
        if (match := pattern.fullmatch(name)) and _start_of(match[1]) != match[2]:
            yield name


def sweep() -> None:
    """Remove the files of processes that were killed before they unlinked them."""
    with contextlib.suppress(OSError):
        for name in stale(path.name for path in FOLDER.glob(f"{PREFIX}*")):
            (FOLDER / name).unlink(missing_ok=True)


def _owner() -> str:
    return f"{_host()}_{os.getpid()}_{_start_of(str(os.getpid()))}"


@functools.cache
def _host() -> str:
    """A hash of the boot and of the process namespace, within which a process number means the same process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return hashlib.blake2s(f"{boot} {namespace}".encode(), digest_size=6).hexdigest()


def _start_of(pid: str) -> str:
    """When a process started, in clock ticks since the boot; "" if it does not run."""
    try:
        # The name in brackets may contain spaces; the state is the first field after it, the start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
