"""Requests whose tensors, in and out, are in shared memory: the message carries only the names of the regions.

The server can share memory if it can open a file that was just created in this machine's /dev/shm under a random name.
The file is unlinked as soon as the server has mapped it; both keep their mappings, and use a region for many requests.

Every user of the machine sees the names of files, and whoever knows the name under which a region is registered can use
it in a request. So that name is another one, which only this process and the server know. Both tell the process: its
boot and process namespace, its number and its start. The next client, and the supervisor of `python -m serve`, remove
what belongs to processes that have ended.
"""

import contextlib
import functools
import hashlib
import math
import mmap
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._contract import Inputs, Metadata
from ._http_format import Places
from ._options import CallOptions
from ._steps import Steps, deadline_after
from ._tensors import Array, contents, tensor
from ._tensors import size as size_of
from .errors import AccessError, ClientError, InvalidInputError, RejectedError, RequestFailedError, ServerFailureError

FOLDER = Path("/dev/shm")
PREFIX = "triton_client_"
SMALLEST_BYTES = 1 << 16
LIMIT_BYTES = 1 << 30
"""The limit for all regions of one client; requests beyond it travel in the message."""

ALIGNMENT = 64
SOON = CallOptions(timeout_s=5.0)
"""The time for calls that register and unregister regions."""

ATTEMPTS = 4
"""How often a request is sent: after an output that was too large, or a restarted server."""

_UNKNOWN_REGION = "Unable to find shared memory region"
_TOO_SMALL = re.compile(r"output '(.*)' \((\d+) bytes\) should be at least (\d+) bytes")

_in_use: set[str] = set()
"""The names of the regions of this process; others with its number are left from a client that was closed."""


class Region:
    """Memory for one request at a time, registered as `name`, which is secret; `file` is its name in /dev/shm.

    Raises `OSError` if there is no room in /dev/shm.
    """

    def __init__(self, size: int) -> None:
        self.name, self.file = (f"{PREFIX}{_owner()}_{secrets.token_hex(16)}" for _ in range(2))
        self.size = size
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
        _in_use.add(self.name)

    def unlink(self) -> None:
        """Remove the file; mappings of the memory stay valid."""
        (FOLDER / self.file).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap the memory."""
        _in_use.discard(self.name)
        with contextlib.suppress(BufferError):  # a view may still exist; then the mapping ends with it
            self.memory.close()


@dataclass(frozen=True)
class Layout:
    """The place of each tensor in a region as (offset, bytes), None for one in the message; `size` is of all."""

    inputs: Mapping[str, tuple[int, int]]
    outputs: Mapping[str, tuple[int, int] | None]
    size: int

    def places(self, region: str) -> Places:
        """The places, as a request names them."""
        inputs = {name: (region, *place) for name, place in self.inputs.items()}
        return Places(inputs, {name: (region, *place) if place else None for name, place in self.outputs.items()})


class SharedMemory:
    """Sends the requests of one client to one server through shared memory; several threads may use it together.

    `works` becomes False for good if the server cannot share memory; `refusal` is what it then said.
    """

    def __init__(self, metadata: Metadata, format_: Any) -> None:
        self._metadata, self._format = metadata, format_
        self.works, self.refusal = True, ""
        self._lock, self._closed, self._has_swept = threading.Lock(), False, False
        self._free: list[Region] = []
        self._retired: list[Region] = []
        self._bytes = 0
        self._largest: dict[str, int] = {}

    def infer(self, inputs: Inputs, options: CallOptions, deadline: float | None) -> Steps[dict[str, Array] | None]:
        """The outputs by name, copied; None if memory cannot be shared or there is no room."""
        sizes = {name: size_of(array) for name, array in inputs.arrays.items()}
        if not self.works or not all(sizes.values()):
            return None  # the server refuses tensors of 0 bytes in a region
        for _ in range(ATTEMPTS):
            layout = self._lay_out(sizes, inputs.shape.rows)
            region = yield from self._take(layout.size, deadline)
            if region is None:
                return None
            try:
                return (yield from self._through(region, layout, inputs, options, deadline))
            except RequestFailedError as error:
                if match := _TOO_SMALL.search(error.text):
                    self._largest[match[1]] = int(match[3])
                elif _UNKNOWN_REGION not in error.text:
                    raise
                # A restarted server does not know the region, and has not run the request: try again.
        return None

    def prepare(self, size: int) -> Steps[None]:
        """Register a region of `size` bytes before the first request needs it."""
        if region := (yield from self._take(size, None)):
            self._give(region)

    def _lay_out(self, sizes: Mapping[str, int], rows: int) -> Layout:
        """Inputs first, then outputs; one of unknown size has room for 1.5 times the largest so far, or none."""
        end = 0
        places = dict[str, tuple[int, int]]()
        outputs = dict[str, tuple[int, int] | None]()
        for name, size in sizes.items():
            places[name] = (end, size)
            end = _aligned(end + size)
        for output in self._metadata.outputs:
            size = max((output.row_bytes or 0) * rows, self._largest.get(output.name, 0))
            outputs[output.name] = (end, size) if size else None
            end = _aligned(end + size)
        return Layout(places, outputs, max(end, 1))

    def _through(
        self, region: Region, layout: Layout, inputs: Inputs, options: CallOptions, deadline: float | None
    ) -> Steps[dict[str, Array]]:
        """Send one request through a region, and free or retire that."""
        is_free = False
        try:
            for name, (offset, size) in layout.inputs.items():
                region.memory[offset : offset + size] = contents(inputs.arrays[name])
            longest_s = self._metadata.longest_server_deadline_s
            places = layout.places(region.name)
            described = yield self._format.infer_in_place(inputs, places, options, deadline, longest_s)
            outputs = self._read(region, layout, described)
            is_free = True
        except (InvalidInputError, RejectedError) as error:
            # Triton has not run the model: UNAVAILABLE with the words of a rejection is its own. If it does not know
            # the region, that is of no use.
            is_own = isinstance(error, InvalidInputError) or error.status == "UNAVAILABLE"
            is_free = is_own and _UNKNOWN_REGION not in error.text
            raise
        finally:
            if is_free:
                self._give(region)
            else:
                # After a deadline, a cancellation or a failure the model may still write into the region.
                self._retire(region)
        return outputs

    def _read(self, region: Region, layout: Layout, described: Mapping[str, Any]) -> dict[str, Array]:
        """Copies of the outputs."""
        outputs = {}
        for name, (datatype, shape, content) in described.items():
            place = layout.outputs.get(name)
            if place:
                with memoryview(region.memory) as memory, memory[place[0] : sum(place)] as written:
                    outputs[name] = tensor(written, datatype, shape, whole=False)
            else:
                content = content or b""
                # Half as much again, so that a slightly longer answer fits as well.
                self._largest[name] = max(self._largest.get(name, 0), len(content) * 3 // 2)
                outputs[name] = tensor(content, datatype, shape)
        return outputs

    def _take(self, size: int, deadline: float | None) -> Steps[Region | None]:
        """A free region of at least `size` bytes, or a new one; None if the server cannot open it or has no room."""
        with self._lock:
            for region in reversed(self._free):
                if region.size >= size:
                    self._free.remove(region)
                    return region
            self._retired += self._free  # they are too small
            self._free.clear()
        yield from self._release(deadline)
        if not self._has_swept:
            self._has_swept = True
            yield from self._sweep(deadline)
        return (yield from self._register(size, deadline))

    def _register(self, size: int, deadline: float | None) -> Steps[Region | None]:
        if (region := self._create(size)) is None:
            return None
        try:
            yield self._format.register(region.name, region.file, region.size, SOON, _soon(deadline))
        except (AccessError, InvalidInputError, RejectedError, ServerFailureError) as error:
            # Another host, another /dev/shm, or a server that does not allow it.
            self.works, self.refusal = False, error.text
            self._discard(region)
            return None
        except BaseException:
            self._retire(region)  # the server may have registered it
            raise
        finally:
            region.unlink()
        return region

    def _create(self, size: int) -> Region | None:
        """A new region, None without room; sizes are powers of two, so that growing requests do not need one each."""
        rounded = max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            if self._closed or self._bytes + rounded > LIMIT_BYTES:
                return None
            self._bytes += rounded
        try:
            return Region(rounded)
        except OSError:
            with self._lock:
                self._bytes -= rounded
            return None

    def _give(self, region: Region) -> None:
        """Free the region of a request that was answered."""
        self._keep(region, self._free)

    def _retire(self, region: Region) -> None:
        """Never use a region again; it is unregistered when no request uses it."""
        self._keep(region, self._retired)

    def _keep(self, region: Region, regions: list[Region]) -> None:
        with self._lock:
            if not self._closed:
                regions.append(region)
                return
        self._discard(region)  # a later client unregisters it

    def _discard(self, region: Region) -> None:
        """Forget a region that is not registered, or that a later client unregisters."""
        with self._lock:
            if region.name not in _in_use:
                return  # another thread was first
            if region in self._retired:
                self._retired.remove(region)
            self._bytes -= region.size
            region.close()

    def _release(self, deadline: float | None) -> Steps[None]:
        """Unregister the regions that no request uses, and forget them."""
        for region in list(self._retired):
            with contextlib.suppress(RequestFailedError):  # a request still uses it
                yield self._format.unregister(region.name, SOON, _soon(deadline))
                self._discard(region)

    def _sweep(self, deadline: float | None) -> Steps[None]:
        """Remove the regions of clients that were killed, or closed while a request used one."""
        for name in stale(path.name for path in FOLDER.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):  # of another user
                (FOLDER / name).unlink(missing_ok=True)
        names: list[str] = []
        with contextlib.suppress(RequestFailedError):
            names = yield self._format.registered(SOON, _soon(deadline))
        for name in stale(names):
            with contextlib.suppress(RequestFailedError):  # a request still uses it
                yield self._format.unregister(name, SOON, _soon(deadline))

    def close(self) -> Steps[None]:
        """Unregister the regions that no request uses; a later client of this machine unregisters the others."""
        with self._lock:
            self._closed = True
            self._retired += self._free
            self._free.clear()
        try:
            yield from self._release(deadline_after(SOON.timeout_s))
        except ClientError:
            return  # the server is gone, and its registrations with it
        finally:
            for region in list(self._retired):
                self._discard(region)


def stale(names: Iterable[str]) -> Iterator[str]:
    """The names that belong to processes of this host that have ended, or to closed clients of this one."""
    pattern = re.compile(rf"{PREFIX}{_host()}_(\d+)_(\d+)_[0-9a-f]+")
    for name in names:
        if match := pattern.fullmatch(name):
            is_own = match[1] == f"{os.getpid()}" and not (FOLDER / name).exists()
            if _start_of(match[1]) != match[2] or (is_own and name not in _in_use):
                yield name


def _soon(deadline: float | None) -> float:
    soon = deadline_after(SOON.timeout_s) or 0.0
    return soon if deadline is None else min(soon, deadline)


def _aligned(offset: int) -> int:
    return math.ceil(offset / ALIGNMENT) * ALIGNMENT


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
