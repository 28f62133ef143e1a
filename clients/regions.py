"""Shared memory that is registered on a server once and used for many requests: inputs in front, outputs behind them.

The file in /dev/shm is unlinked as soon as the server has mapped it, so none can be left behind; server and client
keep their mappings. A client that is killed in between leaves a file whose name says whose it was, for the next one
to remove.

Every user of the machine sees the names of the files, and whoever knows the name under which a region is registered can
name it in a request of their own, and so read and overwrite it. That name is therefore another one, which only this
process, its reaper and the server know.
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

from .device_memory import DeviceRegion

FOLDER = Path("/dev/shm")
PREFIX = "triton_client_"
SMALLEST_BYTES = 1 << 16
LIMIT_BYTES = 1 << 30
"""Of one client's regions together; requests that find no room go over the connection."""

CANARY_BYTES, CANARY_LEAST_BYTES = 16, 4


class Region:
    """One registered piece of memory, for one request at a time.

    It is registered as `name`, which is secret; `file` is its name in /dev/shm.
    `heads` keeps the heads of earlier requests by their shapes, `devices` the regions on a GPU of inputs that lie
    there. Raises `OSError` when there is no room in /dev/shm.
    """

    def __init__(self, size: int) -> None:
        self.name, self.file = (f"{PREFIX}{_owner()}_{secrets.token_hex(16)}" for _ in range(2))
        self.size = size
        self.proven = False
        self.heads: dict[object, bytes] = {}
        self.devices: dict[str, DeviceRegion] = {}
        descriptor = os.open(FOLDER / self.file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Claims the memory now: without it a full /dev/shm would kill whoever writes first.
            os.posix_fallocate(descriptor, 0, size)
            self.memory = mmap.mmap(descriptor, size)
        except OSError:
            self.unlink()
            raise
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the file; the memory stays for those who have mapped it."""
        with contextlib.suppress(FileNotFoundError):
            (FOLDER / self.file).unlink()

    def close(self) -> None:
        """Give this process's mapping back."""
        for device in self.devices.values():
            device.close()
        # Something may still look at it; then the mapping goes with that.
        with contextlib.suppress(BufferError):
            self.memory.close()


class Ring:
    """A client's regions: the free ones, the last used on top, and those that the server may still write to.

    Callers hold a lock, but not to create one: that takes its time.
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
        """The request is answered: the region is free again."""
        self._free.append(region)

    def create(self, size: int) -> Region | None:
        """A new region, not yet registered; None when there is no room.

        Sizes are powers of two, so that requests that grow do not make a new one each.
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
        """Retire the free regions that a request of `size` bytes found too small; all that are retired."""
        self.retire([region for region in self._free if region.size < _rounded(size)])
        return list(self.retired)

    def retire(self, regions: Iterable[Region]) -> None:
        """Never use these again; the server is asked to let go of them when it can."""
        for region in list(regions):
            if region in self._free:
                self._free.remove(region)
            self.retired.append(region)

    def discard(self, region: Region) -> None:
        """Forget a region that the server does not have (any more)."""
        if region in self.retired:
            self.retired.remove(region)
        self._count(-region.size)
        region.unlink()
        region.close()

    def drain(self) -> list[Region]:
        """All regions that no request uses, retired."""
        self.retire(self._free)
        return list(self.retired)

    def _count(self, more: int) -> None:
        with self._counting:
            self.bytes += more


def _rounded(size: int) -> int:
    return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())


def stale(names: Iterable[str]) -> Iterator[str]:
    """Those of `names` that are a region of a process of this host that is no more."""
    ours = re.compile(rf"{PREFIX}{_host()}_(\d+)_(\d+)_[0-9a-f]+")
    for name in names:
        if (found := ours.fullmatch(name)) and _start_of(found[1]) != found[2]:
            yield name


def sweep() -> None:
    """Remove the files that killed processes left between creating and unlinking them."""
    with contextlib.suppress(OSError):
        for name in stale(path.name for path in FOLDER.glob(f"{PREFIX}*")):
            (FOLDER / name).unlink(missing_ok=True)


def _owner() -> str:
    return f"{_host()}_{os.getpid()}_{_start_of(str(os.getpid()))}"


@functools.cache
def _host() -> str:
    """One word for this boot of this machine and this container: where a process number means the same process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return hashlib.blake2s(f"{boot} {namespace}".encode(), digest_size=6).hexdigest()


def _start_of(pid: str) -> str:
    """When a process started, in clock ticks since the boot; no words when it does not run."""
    try:
        # The name in brackets may hold spaces; the state is the first field after it, the start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
