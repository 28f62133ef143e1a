"""The registrations of one client on one server: its regions, known to the server and to the reaper.

A region is named to the reaper before it is registered, so that none is left behind if this process is killed.
"""

import threading
from collections.abc import Sequence

from . import protocol as pb
from . import regions
from .endpoint import Endpoint
from .errors import AccessError, ClientError, InvalidInputError, RejectedError, RequestFailedError, ServerFailureError
from .lease import Lease
from .regions import Region, Ring
from .steps import Step, Steps, Work, deadline_after

SOON_S = 5.0
"""The time for calls that register and unregister regions."""


class Registry:
    """The regions of one client on one server; `works` becomes False for good if the server cannot share memory.

    `refusal` is what the server then said, "" if it said nothing.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._ring, self._lock = Ring(), threading.Lock()
        # Acquired before `_lock`, and held while the reaper starts and memory is allocated.
        self._creating, self._closed = threading.Lock(), False
        self._lease: Lease | None = None
        self.works, self.refusal = True, ""

    def take(self, size: int, deadline: float | None) -> Steps[Region | None]:
        """A free region of at least `size` bytes, or a new one; None as for `register`."""
        with self._lock:
            if not self.works or self._closed:
                return None
            if region := self._ring.take(size):
                return region
        return (yield from self.register(size, deadline))

    def give(self, region: Region) -> None:
        """Free the region of a request that was answered."""
        with self._lock:
            self._ring.give(region)

    def retire(self, region: Region) -> None:
        """Never use this region again; it is unregistered when no request uses it."""
        with self._lock:
            self._ring.retire([region])

    def register(self, size: int, deadline: float | None = None) -> Steps[Region | None]:
        """A new registered region; None if the server cannot open it, or there is no room.

        Raises `TimedOutError` if the server has not answered in `SOON_S` or by `deadline` on the monotonic clock.
        """
        if self._lease is None:
            yield from self._sweep(deadline)
        with self._lock:
            retired = self._ring.outgrown(size)
        yield from self._release(retired, deadline)
        region: Region | None = yield Work(lambda: self._create(size), self._give_up)
        if region is None:
            return None
        request = pb.SystemSharedMemoryRegisterRequest(name=region.name, key=f"/{region.file}", byte_size=region.size)
        try:
            yield Step("SystemSharedMemoryRegister", request.SerializeToString(), (), SOON_S, deadline)
        except (AccessError, InvalidInputError, RejectedError, ServerFailureError) as error:
            # Another host, another /dev/shm, or a server that does not allow it.
            self.works, self.refusal = False, error.text
            self._give_up(region)
            return None
        except BaseException:
            # The server may have registered it.
            with self._lock:
                self._ring.retire([region])
            raise
        finally:
            region.unlink()
        return region

    def _create(self, size: int) -> Region | None:
        """A new region that the reaper knows; None if there is no reaper, no room, or the client was closed.

        Blocks while the reaper starts, without `_lock`, so that other calls go on.
        """
        with self._creating:
            region = None
            try:
                lease = self._lease or Lease(self._endpoint)
                if region := self._ring.create(size):
                    lease.hold(region.name)
            except OSError:
                self.works = False
                self._give_up(region)
                return None
            with self._lock:
                self._lease, closed = lease, self._closed
        if closed:
            lease.close()
            self._give_up(region)
            return None
        return region

    def _give_up(self, region: Region | None) -> None:
        """Discard a region that the server does not have."""
        if region:
            with self._lock:
                self._ring.discard(region)
            if self._lease:
                self._lease.drop(region.name)

    def _sweep(self, deadline: float | None) -> Steps[None]:
        """Remove the regions of clients that were killed together with their reaper."""
        regions.sweep()
        try:
            status = yield Step("SystemSharedMemoryStatus", b"", (), SOON_S, deadline)
            for name in regions.stale(status.regions):
                yield _unregister(name, deadline)
        except RequestFailedError:
            return

    def _release(self, retired: Sequence[Region], deadline: float | None = None) -> Steps[None]:
        """Unregister the regions that no request uses, and discard them."""
        for region in retired:
            try:
                yield _unregister(region.name, deadline)
            except RequestFailedError:
                continue  # a request still uses it
            with self._lock:
                if region in self._ring.retired:
                    self._ring.discard(region)
            if self._lease:
                self._lease.drop(region.name)

    def close(self) -> Steps[None]:
        """Unregister the regions that no request uses; the reaper unregisters the others when their requests end."""
        with self._lock:
            self._closed = True
            everything = self._ring.drain()
        try:
            yield from self._release(everything, deadline_after(SOON_S))
        except ClientError:
            return  # the server is gone, and its registrations with it
        finally:
            if self._lease:
                self._lease.close()
            with self._lock:
                for region in list(self._ring.retired):
                    self._ring.discard(region)


def _unregister(name: str, deadline: float | None) -> Step:
    request = pb.SystemSharedMemoryUnregisterRequest(name=name)
    return Step("SystemSharedMemoryUnregister", request.SerializeToString(), (), SOON_S, deadline)
