"""Requests whose tensors lie in shared memory, in and out: the connection carries only their names.

The server is on this host when it can open what was just created here under a random name, and the first answer shows
it to be the same memory. Otherwise `infer` returns None and the request has to carry its tensors itself.
"""

import math
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritonclient.grpc import service_pb2 as pb

from clients import regions, wire
from clients.contract import Array, Metadata, Tensor
from clients.errors import (
    ClientError,
    InvalidInputError,
    RejectedError,
    RequestFailedError,
    ServerFailureError,
)
from clients.lease import Lease
from clients.regions import CANARY_BYTES, Region, Ring
from clients.steps import Step, Steps

ALIGNMENT = 64
UNKNOWN_REGION = "Unable to find shared memory region"
TOO_SMALL = re.compile(r"output '(.*)' \((\d+) bytes\) should be at least (\d+) bytes")
ATTEMPTS = 4
SOON_S = 5.0


class NotSharedError(Exception):
    """The server's memory of that name is not ours."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each tensor of a request lies: (offset, bytes). Outputs of unknown size are not in it; they come inline."""

    inputs: Mapping[str, tuple[int, int]]
    outputs: Mapping[str, tuple[int, int]]
    size: int


class SharedMemory:
    """One client's regions on one server; `works` turns False for good when the server cannot share memory."""

    def __init__(self, metadata: Metadata, url: str, version: str) -> None:
        self._metadata, self._url, self._version = metadata, url, version
        self._ring, self._lock = Ring(), threading.Lock()
        self._lease: Lease | None = None
        self._largest: dict[str, int] = {}
        self.works = True

    def infer(
        self, arrays: Mapping[str, Array], added: bytes, timeout_s: float | None
    ) -> Steps[dict[str, Array] | None]:
        """Outputs by name, in arrays of their own; None where memory cannot be shared or has no room."""
        tensors = [wire.contents(array) for array in arrays.values()]
        for _ in range(ATTEMPTS):
            layout = self._layout(arrays, tensors)
            region = yield from self._region(layout.size)
            if region is None:
                return None
            try:
                return (yield from self._through(region, layout, arrays, tensors, added, timeout_s))
            except NotSharedError:
                self.works = False
                return None
            except ServerFailureError as error:
                if found := TOO_SMALL.search(str(error)):
                    self._largest[found[1]] = int(found[3])  # larger than any answer before it
                elif UNKNOWN_REGION not in str(error):
                    raise
                # A server that was restarted has seen neither the region nor the request.
        return None

    def _through(
        self,
        region: Region,
        layout: Layout,
        arrays: Mapping[str, Array],
        tensors: Sequence[memoryview],
        added: bytes,
        timeout_s: float | None,
    ) -> Steps[dict[str, Array]]:
        answered = False
        for (offset, size), tensor in zip(layout.inputs.values(), tensors, strict=True):
            region.memory[offset : offset + size] = tensor
        canary = self._canary(region, layout)
        try:
            response = yield Step("ModelInfer", self._head(region, layout, arrays) + added, (), timeout_s)
            if canary and region.memory[canary[0] : canary[0] + len(canary[1])] == canary[1]:
                raise NotSharedError
            region.proven = region.proven or canary is not None
            found = self._read(region, layout, response)
            answered = True
        except (InvalidInputError, RejectedError, ServerFailureError) as error:
            # The server is done with the request, unless it does not know the region (any more).
            answered = UNKNOWN_REGION not in str(error)
            raise
        finally:
            # After a deadline or a cancellation the model may still write into it.
            with self._lock:
                (self._ring.give if answered else lambda one: self._ring.retire([one]))(region)
        return found

    def _canary(self, region: Region, layout: Layout) -> tuple[int, bytes] | None:
        """Random bytes where the first answer will be: they are still there only if the server writes elsewhere."""
        if region.proven or not layout.outputs:
            return None
        offset, size = next(iter(layout.outputs.values()))
        canary = secrets.token_bytes(min(size, CANARY_BYTES))
        region.memory[offset : offset + len(canary)] = canary
        return offset, canary

    def _layout(self, arrays: Mapping[str, Array], tensors: Sequence[memoryview]) -> Layout:
        end = 0
        inputs, outputs = {}, {}
        for name, tensor in zip(arrays, tensors, strict=True):
            inputs[name] = (end, len(tensor))
            end = _aligned(end + len(tensor))
        rows = len(next(iter(arrays.values()))) if self._metadata.max_batch_size and arrays else 1
        for output in self._metadata.outputs:
            if size := self._output_bytes(output, rows):
                outputs[output.name] = (end, size)
                end = _aligned(end + size)
        return Layout(inputs=inputs, outputs=outputs, size=max(end, 1))

    def _output_bytes(self, output: Tensor, rows: int) -> int:
        """Room for an output: what it takes, or the most that it has taken; 0 when that is not known yet."""
        if output.row_bytes is not None:
            return output.row_bytes * rows
        return self._largest.get(output.name, 0)

    def _head(self, region: Region, layout: Layout, arrays: Mapping[str, Array]) -> bytes:
        key = (tuple(array.shape for array in arrays.values()), *layout.inputs.values(), *layout.outputs.values())
        if head := region.heads.get(key):
            return head
        request = pb.ModelInferRequest(model_name=self._metadata.name, model_version=self._version)
        for name, place in layout.inputs.items():
            array = arrays[name]
            tensor = request.inputs.add(name=name, datatype=wire.datatype(array), shape=array.shape)
            _refer(tensor, region, place)
        for output in self._metadata.outputs:
            requested = request.outputs.add(name=output.name)
            if output.name in layout.outputs:
                _refer(requested, region, layout.outputs[output.name])
        if len(region.heads) >= wire.HEADS:
            region.heads.clear()
        region.heads[key] = request.SerializeToString()
        return region.heads[key]

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

    def _region(self, size: int) -> Steps[Region | None]:
        with self._lock:
            if not self.works:
                return None
            if region := self._ring.take(size):
                return region
        return (yield from self.register(size))

    def prepare(self, size: int) -> Steps[None]:
        """Register a first region, so that the first request need not."""
        if region := (yield from self.register(size)):
            with self._lock:
                self._ring.give(region)

    def register(self, size: int) -> Steps[Region | None]:
        """A new region that the server knows; None when it cannot open it, or there is no room."""
        try:
            if self._lease is None:
                yield from self._sweep()
            with self._lock:
                self._lease = self._lease or Lease(self._url)
                region = self._ring.create(size)
                retired = list(self._ring.retired)
            yield from self._release(retired)
            if region is None:
                return None
            self._lease.hold(region.name)
        except OSError:
            self.works = False
            return None
        request = pb.SystemSharedMemoryRegisterRequest(name=region.name, key=f"/{region.name}", byte_size=region.size)
        try:
            yield Step("SystemSharedMemoryRegister", request.SerializeToString(), timeout_s=SOON_S)
        except RequestFailedError:
            # Another host, another /dev/shm, or a server that does not allow it.
            self.works = False
            with self._lock:
                self._ring.discard(region)
            return None
        except BaseException:
            with self._lock:
                self._ring.retire([region])
            raise
        finally:
            region.unlink()
        return region

    def _sweep(self) -> Steps[None]:
        """Remove what killed clients left, if their reaper was killed as well."""
        regions.sweep()
        try:
            status = yield Step("SystemSharedMemoryStatus", b"", timeout_s=SOON_S)
            for name in regions.stale(status.regions):
                yield _unregistering(name)
        except RequestFailedError:
            return

    def _release(self, retired: Sequence[Region]) -> Steps[None]:
        for region in retired:
            try:
                yield _unregistering(region.name)
            except RequestFailedError:
                continue  # a request still uses it
            with self._lock:
                if region in self._ring.retired:
                    self._ring.discard(region)
            if self._lease:
                self._lease.drop(region.name)

    def close(self) -> Steps[None]:
        """Unregister what no request uses; the reaper does the rest as soon as none does."""
        with self._lock:
            everything = self._ring.drain()
        try:
            yield from self._release(everything)
        except ClientError:
            return  # the server is gone, and its registrations with it
        finally:
            if self._lease:
                self._lease.close()
            with self._lock:
                for region in list(self._ring.retired):
                    self._ring.discard(region)


def _aligned(offset: int) -> int:
    return math.ceil(offset / ALIGNMENT) * ALIGNMENT


def _refer(tensor: "pb.ModelInferRequest.InferInputTensor", region: Region, place: tuple[int, int]) -> None:
    tensor.parameters["shared_memory_region"].string_param = region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = place[1]
    if place[0]:
        tensor.parameters["shared_memory_offset"].int64_param = place[0]


def _unregistering(name: str) -> Step:
    request = pb.SystemSharedMemoryUnregisterRequest(name=name)
    return Step("SystemSharedMemoryUnregister", request.SerializeToString(), timeout_s=SOON_S)
