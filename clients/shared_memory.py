"""Requests whose tensors, in and out, are in shared memory: the message carries only the names of the regions.

The server is on this host if it can open a file that was just created here under a random name, and if its first answer
proves that it is the same memory. Otherwise `infer` returns None, and the tensors must travel in the message.
"""

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

from . import protocol as pb
from . import regions, wire
from .contract import Array, Metadata
from .device_memory import DeviceArray, DeviceRegion
from .endpoint import Endpoint
from .errors import (
    AccessError,
    ClientError,
    InvalidInputError,
    RejectedError,
    RequestFailedError,
    ServerFailureError,
)
from .layout import Layout, contents, head, lay_out
from .lease import Lease
from .regions import CANARY_BYTES, CANARY_LEAST_BYTES, Region, Ring
from .steps import Step, Steps, Work, deadline_after
from .terms import Terms

UNKNOWN_REGION = "Unable to find shared memory region"
TOO_SMALL = re.compile(r"output '(.*)' \((\d+) bytes\) should be at least (\d+) bytes")
ATTEMPTS = 4
"""How often a request is sent: after an output that was too large, a restarted server, or a refused GPU."""

SOON_S = 5.0
"""The time for calls that register and unregister regions."""


class NotSharedError(Exception):
    """The server's memory of that name is not this client's."""


class DeviceRefusedError(Exception):
    """The server cannot open memory of this GPU."""


class SharedMemory:
    """The regions of one client on one server; `works` becomes False for good if the server cannot share memory."""

    def __init__(self, metadata: Metadata, endpoint: Endpoint, version: str) -> None:
        self._metadata, self._endpoint, self._version = metadata, endpoint, version
        self._ring, self._lock = Ring(), threading.Lock()
        # Acquired before `_lock`, and held while the reaper starts and memory is allocated.
        self._creating, self._closed = threading.Lock(), False
        self._lease: Lease | None = None
        self._largest: dict[str, int] = {}
        self._on_device = True
        self.works = True

    def infer(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[dict[str, Array] | None]:
        """The outputs by name, copied; None if memory cannot be shared or there is no room."""
        if not self.works or not all(array.nbytes for array in arrays.values()):
            return None  # the server refuses tensors of 0 bytes in a region
        deadline = deadline_after(terms.timeout_s)
        for _ in range(ATTEMPTS):
            tensors = yield from contents(arrays.values(), on_device=self._on_device)
            layout = lay_out(self._metadata, arrays, tensors, self._largest)
            region = yield from self._region(layout.size, deadline)
            if region is None:
                return None
            try:
                return (yield from self._through(region, layout, arrays, tensors, terms, deadline))
            except NotSharedError:
                self.works = False
                return None
            except DeviceRefusedError:
                self._on_device = False  # GPU arrays are copied to the host from now on
            except ServerFailureError as error:
                if match := TOO_SMALL.search(error.text):
                    self._largest[match[1]] = int(match[3])
                elif UNKNOWN_REGION not in error.text:
                    raise
                # A restarted server does not know the region, and has not run the request: try again.
        return None

    def _through(
        self,
        region: Region,
        layout: Layout,
        arrays: Mapping[str, Array],
        tensors: Sequence[memoryview | None],
        terms: Terms,
        deadline: float | None,
    ) -> Steps[dict[str, Array]]:
        """Send one request through a region, and free or retire that."""
        answered = False
        try:
            for (name, array), tensor in zip(arrays.items(), tensors, strict=True):
                if tensor is None:
                    yield from self._to_device(region, name, cast(DeviceArray, array))
                else:
                    offset, size = layout.inputs[name]
                    region.memory[offset : offset + size] = tensor
            canary = self._canary(region, layout)
            message = head(self._metadata, self._version, region, layout, arrays)
            message += terms.encoded(allows_queue_timeout=self._metadata.allows_queue_timeout)
            response = yield Step("ModelInfer", message, (), terms.timeout_s, deadline, terms.request_id)
            if canary and region.memory[canary[0] : canary[0] + len(canary[1])] == canary[1]:
                raise NotSharedError
            region.proven = region.proven or canary is not None
            outputs = self._read(region, layout, response)
            answered = True
        except (InvalidInputError, RejectedError, ServerFailureError) as error:
            # The server no longer uses the region; if it does not know it, the region is of no use.
            answered = UNKNOWN_REGION not in error.text
            raise
        finally:
            # After a deadline or a cancellation the model may still write into the region.
            with self._lock:
                if answered:
                    self._ring.give(region)
                else:
                    self._ring.retire([region])
        return outputs

    def _to_device(self, region: Region, name: str, array: DeviceArray) -> Steps[None]:
        """Copy an input into a region on its own GPU; a new region is registered if none is large enough."""
        device = region.devices.get(name)
        if device is None or device.size < array.nbytes or device.device != array.device:
            try:
                # Off the event loop, like all calls of CUDA: they wait for the work of the GPU.
                device = yield Work(lambda: DeviceRegion(region.name, array.nbytes, array.device), DeviceRegion.close)
            except OSError as error:
                raise DeviceRefusedError from error
            if self._lease:
                self._lease.hold(device.name)
            request = pb.CudaSharedMemoryRegisterRequest(
                name=device.name, raw_handle=device.handle, device_id=device.device, byte_size=device.size
            )
            try:
                yield Step("CudaSharedMemoryRegister", request.SerializeToString(), timeout_s=SOON_S)
            except RequestFailedError as error:
                device.close()
                raise DeviceRefusedError from error
            # The smaller region stays in the dict, so that it is unregistered with the others.
            if name in region.devices:
                region.devices[f"{name} {device.name}"] = region.devices[name]
            region.devices[name] = device
        try:
            yield Work(lambda: device.fill(array), lambda _: None)
        except OSError as error:
            raise DeviceRefusedError from error

    def _canary(self, region: Region, layout: Layout) -> tuple[int, bytes] | None:
        """Write random bytes where the first answer must come: they stay only if the server writes to other memory.

        Returns their offset and the bytes; None if the region is proven, or no output of known size is large enough.
        """
        places = [layout.outputs[output.name] for output in self._metadata.outputs if output.row_bytes]
        offset, size = max(places, key=lambda place: place[1], default=(0, 0))
        if region.proven or size < CANARY_LEAST_BYTES:
            return None
        canary = secrets.token_bytes(min(size, CANARY_BYTES))
        region.memory[offset : offset + len(canary)] = canary
        return offset, canary

    def _read(self, region: Region, layout: Layout, response: Any) -> dict[str, Array]:
        """Copies of the outputs in a ModelInferResponse."""
        outputs = {}
        for index, output in enumerate(response.outputs):
            if place := layout.outputs.get(output.name):
                content = memoryview(region.memory)[place[0] : place[0] + place[1]]
            else:
                content = memoryview(response.raw_output_contents[index])
                # Half as much again, so that a slightly longer answer fits as well.
                self._largest[output.name] = max(self._largest.get(output.name, 0), len(content) * 3 // 2)
            outputs[output.name] = wire.tensor(content, output.datatype, output.shape)
            content.release()
        return outputs

    def _region(self, size: int, deadline: float | None) -> Steps[Region | None]:
        with self._lock:
            if not self.works or self._closed:
                return None
            if region := self._ring.take(size):
                return region
        return (yield from self.register(size, deadline))

    def prepare(self, size: int) -> Steps[None]:
        """Register a region before the first request needs it."""
        if region := (yield from self.register(size)):
            with self._lock:
                self._ring.give(region)

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
        except (AccessError, InvalidInputError, RejectedError, ServerFailureError):
            # Another host, another /dev/shm, or a server that does not allow it.
            self.works = False
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
                for device in region.devices.values():
                    yield _unregister(device.name, deadline, "Cuda")
                yield _unregister(region.name, deadline)
            except RequestFailedError:
                continue  # a request still uses it
            with self._lock:
                if region in self._ring.retired:
                    self._ring.discard(region)
            if self._lease:
                for name in (region.name, *(device.name for device in region.devices.values())):
                    self._lease.drop(name)

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


def _unregister(name: str, deadline: float | None, kind: str = "System") -> Step:
    request = getattr(pb, f"{kind}SharedMemoryUnregisterRequest")(name=name)
    return Step(f"{kind}SharedMemoryUnregister", request.SerializeToString(), (), SOON_S, deadline)
