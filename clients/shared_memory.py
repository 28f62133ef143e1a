"""Requests whose tensors lie in shared memory, in and out: the connection carries only their names.

The server is on this host when it can open what was just created here under a random name, and the first answer shows
it to be the same memory. Otherwise `infer` returns None and the request has to carry its tensors itself.
"""

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import cast

from tritonclient.grpc import service_pb2 as pb

from clients import regions, wire
from clients.contract import Array, Metadata
from clients.device_memory import DeviceArray, DeviceRegion
from clients.endpoint import Endpoint
from clients.errors import (
    AccessError,
    ClientError,
    InvalidInputError,
    RejectedError,
    RequestFailedError,
    ServerFailureError,
)
from clients.layout import Layout, contents, head, lay_out
from clients.lease import Lease
from clients.regions import CANARY_BYTES, CANARY_LEAST_BYTES, Region, Ring
from clients.steps import Step, Steps, Work, ending

UNKNOWN_REGION = "Unable to find shared memory region"
TOO_SMALL = re.compile(r"output '(.*)' \((\d+) bytes\) should be at least (\d+) bytes")
ATTEMPTS = 4
SOON_S = 5.0


class NotSharedError(Exception):
    """The server's memory of that name is not ours."""


class DeviceRefusedError(Exception):
    """The server cannot open memory of this GPU."""


class SharedMemory:
    """One client's regions on one server; `works` turns False for good when the server cannot share memory."""

    def __init__(self, metadata: Metadata, endpoint: Endpoint, version: str) -> None:
        self._metadata, self._endpoint, self._version = metadata, endpoint, version
        self._ring, self._lock = Ring(), threading.Lock()
        # Taken before the other one, and for as long as the reaper and the memory take.
        self._creating, self._closed = threading.Lock(), False
        self._lease: Lease | None = None
        self._largest: dict[str, int] = {}
        self._on_device = True
        self.works = True

    def infer(
        self, arrays: Mapping[str, Array], added: bytes, timeout_s: float | None
    ) -> Steps[dict[str, Array] | None]:
        """Outputs by name, in arrays of their own; None where memory cannot be shared or has no room."""
        if not self.works or not all(array.nbytes for array in arrays.values()):
            return None  # the server takes no 0 bytes from a region
        ends = ending(timeout_s)
        for _ in range(ATTEMPTS):
            tensors = yield from contents(arrays.values(), on_device=self._on_device)
            layout = lay_out(self._metadata, arrays, tensors, self._largest)
            region = yield from self._region(layout.size, ends)
            if region is None:
                return None
            try:
                return (yield from self._through(region, layout, arrays, tensors, added, timeout_s, ends))
            except NotSharedError:
                self.works = False
                return None
            except DeviceRefusedError:
                self._on_device = False  # their bytes go through this machine's memory
            except ServerFailureError as error:
                if found := TOO_SMALL.search(error.text):
                    self._largest[found[1]] = int(found[3])  # larger than any answer before it
                elif UNKNOWN_REGION not in error.text:
                    raise
                # A server that was restarted has seen neither the region nor the request.
        return None

    def _through(
        self,
        region: Region,
        layout: Layout,
        arrays: Mapping[str, Array],
        tensors: Sequence[memoryview | None],
        added: bytes,
        timeout_s: float | None,
        ends: float | None,
    ) -> Steps[dict[str, Array]]:
        answered = False
        try:
            for (name, array), tensor in zip(arrays.items(), tensors, strict=True):
                if tensor is None:
                    yield from self._to_device(region, name, cast(DeviceArray, array))
                else:
                    offset, size = layout.inputs[name]
                    region.memory[offset : offset + size] = tensor
            canary = self._canary(region, layout)
            message = head(self._metadata, self._version, region, layout, arrays) + added
            response = yield Step("ModelInfer", message, (), timeout_s, ends)
            if canary and region.memory[canary[0] : canary[0] + len(canary[1])] == canary[1]:
                raise NotSharedError
            region.proven = region.proven or canary is not None
            found = self._read(region, layout, response)
            answered = True
        except (InvalidInputError, RejectedError, ServerFailureError) as error:
            # The server is done with the request, unless it does not know the region (any more).
            answered = UNKNOWN_REGION not in error.text
            raise
        finally:
            # After a deadline or a cancellation the model may still write into it.
            with self._lock:
                (self._ring.give if answered else lambda one: self._ring.retire([one]))(region)
        return found

    def _to_device(self, region: Region, name: str, array: DeviceArray) -> Steps[None]:
        """Copy an input into a region on its own GPU, registered when there is none of that size yet."""
        held = region.devices.get(name)
        if held is None or held.size < array.nbytes or held.device != array.device:
            try:
                # Off the event loop, as all of CUDA: it waits for what the GPU does.
                held = yield Work(lambda: DeviceRegion(region.name, array.nbytes, array.device), DeviceRegion.close)
            except OSError as error:
                raise DeviceRefusedError from error
            if self._lease:
                self._lease.hold(held.name)
            request = pb.CudaSharedMemoryRegisterRequest(
                name=held.name, raw_handle=held.handle, device_id=held.device, byte_size=held.size
            )
            try:
                yield Step("CudaSharedMemoryRegister", request.SerializeToString(), timeout_s=SOON_S)
            except RequestFailedError as error:
                held.close()
                raise DeviceRefusedError from error
            # The smaller one before it goes with the region, so that its name is not forgotten.
            if name in region.devices:
                region.devices[f"{name} {held.name}"] = region.devices[name]
            region.devices[name] = held
        try:
            yield Work(lambda: held.fill(array), lambda _: None)
        except OSError as error:
            raise DeviceRefusedError from error

    def _canary(self, region: Region, layout: Layout) -> tuple[int, bytes] | None:
        """Random bytes where the first answer will be: they are still there only if the server writes elsewhere.

        They lie where an answer has bytes in any case, and too many to be the same by chance; None where none has.
        """
        known = [layout.outputs[one.name] for one in self._metadata.outputs if one.row_bytes]
        offset, size = max(known, key=lambda place: place[1], default=(0, 0))
        if region.proven or size < CANARY_LEAST_BYTES:
            return None
        canary = secrets.token_bytes(min(size, CANARY_BYTES))
        region.memory[offset : offset + len(canary)] = canary
        return offset, canary

    def _read(self, region: Region, layout: Layout, response: pb.ModelInferResponse) -> dict[str, Array]:
        found = {}
        for number, output in enumerate(response.outputs):
            if place := layout.outputs.get(output.name):
                content = memoryview(region.memory)[place[0] : place[0] + place[1]]
            else:
                content = memoryview(response.raw_output_contents[number])
                # Half as much again, so that a slightly longer answer fits as well.
                self._largest[output.name] = max(self._largest.get(output.name, 0), len(content) * 3 // 2)
            found[output.name] = wire.tensor(content, output.datatype, output.shape)
            content.release()
        return found

    def _region(self, size: int, ends: float | None) -> Steps[Region | None]:
        with self._lock:
            if not self.works or self._closed:
                return None
            if region := self._ring.take(size):
                return region
        return (yield from self.register(size, ends))

    def prepare(self, size: int) -> Steps[None]:
        """Register a first region, so that the first request need not."""
        if region := (yield from self.register(size)):
            with self._lock:
                self._ring.give(region)

    def register(self, size: int, ends: float | None = None) -> Steps[Region | None]:
        """A new region that the server knows; None when it cannot open it, or there is no room.

        Raises `TimedOutError` when the server has not answered in `SOON_S` or at `ends` on the monotonic clock.
        """
        if self._lease is None:
            yield from self._sweep(ends)
        with self._lock:
            retired = self._ring.outgrown(size)
        yield from self._release(retired, ends)
        region: Region | None = yield Work(lambda: self._held(size), self._give_up)
        if region is None:
            return None
        request = pb.SystemSharedMemoryRegisterRequest(name=region.name, key=f"/{region.file}", byte_size=region.size)
        try:
            yield Step("SystemSharedMemoryRegister", request.SerializeToString(), (), SOON_S, ends)
        except (AccessError, InvalidInputError, RejectedError, ServerFailureError):
            # Another host, another /dev/shm, or a server that does not allow it.
            self.works = False
            self._give_up(region)
            return None
        except BaseException:
            # It may have been registered all the same.
            with self._lock:
                self._ring.retire([region])
            raise
        finally:
            region.unlink()
        return region

    def _held(self, size: int) -> Region | None:
        """A new region of which the reaper knows; without a reaper there is none, and no memory is shared.

        Blocks until there is one: `_lock`, for which everybody waits, is taken only for moments.
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
        """The server does not have it."""
        if region:
            with self._lock:
                self._ring.discard(region)
            if self._lease:
                self._lease.drop(region.name)

    def _sweep(self, ends: float | None) -> Steps[None]:
        """Remove what killed clients left, if their reaper was killed as well."""
        regions.sweep()
        try:
            status = yield Step("SystemSharedMemoryStatus", b"", (), SOON_S, ends)
            for name in regions.stale(status.regions):
                yield _unregistering(name, ends)
        except RequestFailedError:
            return

    def _release(self, retired: Sequence[Region], ends: float | None = None) -> Steps[None]:
        for region in retired:
            try:
                for device in region.devices.values():
                    yield _unregistering(device.name, ends, "Cuda")
                yield _unregistering(region.name, ends)
            except RequestFailedError:
                continue  # a request still uses it
            with self._lock:
                if region in self._ring.retired:
                    self._ring.discard(region)
            if self._lease:
                for name in (region.name, *(device.name for device in region.devices.values())):
                    self._lease.drop(name)

    def close(self) -> Steps[None]:
        """Unregister what no request uses; the reaper does the rest as soon as none does."""
        with self._lock:
            self._closed = True
            everything = self._ring.drain()
        try:
            yield from self._release(everything, ending(SOON_S))
        except ClientError:
            return  # the server is gone, and its registrations with it
        finally:
            if self._lease:
                self._lease.close()
            with self._lock:
                for region in list(self._ring.retired):
                    self._ring.discard(region)


def _unregistering(name: str, ends: float | None, kind: str = "System") -> Step:
    request = getattr(pb, f"{kind}SharedMemoryUnregisterRequest")(name=name)
    return Step(f"{kind}SharedMemoryUnregister", request.SerializeToString(), (), SOON_S, ends)
