"""Requests whose tensors, in and out, are in shared memory: the message carries only the names of the regions.

The server is on this host if it can open a file that was just created here under a random name, and if its first answer
proves that it is the same memory. Otherwise `infer` returns None, and the tensors must travel in the message.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from . import wire
from .contract import Array, Metadata
from .endpoint import Endpoint
from .errors import InvalidInputError, RejectedError, ServerFailureError
from .layout import Layout, head, lay_out
from .regions import Region
from .registry import Registry
from .steps import Step, Steps, deadline_after
from .terms import Terms

CANARY_BYTES, CANARY_LEAST_BYTES = 16, 4
UNKNOWN_REGION = "Unable to find shared memory region"
TOO_SMALL = re.compile(r"output '(.*)' \((\d+) bytes\) should be at least (\d+) bytes")
ATTEMPTS = 4
"""How often a request is sent: after an output that was too large, or a restarted server."""


class NotSharedError(Exception):
    """The server's memory of that name is not this client's."""


class SharedMemory:
    """Sends the requests of one client to one server through shared memory."""

    def __init__(self, metadata: Metadata, endpoint: Endpoint, version: str) -> None:
        self._metadata, self._version = metadata, version
        self._registry = Registry(endpoint)
        self._largest: dict[str, int] = {}

    @property
    def works(self) -> bool:
        """Whether the server and this process can share memory, as far as is known."""
        return self._registry.works

    @property
    def refusal(self) -> str:
        """What the server said when it refused a region; "" if it said nothing."""
        return self._registry.refusal

    def prepare(self, size: int) -> Steps[None]:
        """Register a region of `size` bytes before the first request needs it."""
        if region := (yield from self._registry.register(size)):
            self._registry.give(region)

    def close(self) -> Steps[None]:
        """Unregister the regions; see `Registry.close`."""
        yield from self._registry.close()

    def infer(self, arrays: Mapping[str, Array], terms: Terms) -> Steps[dict[str, Array] | None]:
        """The outputs by name, copied; None if memory cannot be shared or there is no room."""
        if not self.works or not all(array.nbytes for array in arrays.values()):
            return None  # the server refuses tensors of 0 bytes in a region
        deadline = deadline_after(terms.timeout_s)
        for _ in range(ATTEMPTS):
            tensors = list(map(wire.contents, arrays.values()))
            layout = lay_out(self._metadata, arrays, tensors, self._largest)
            region = yield from self._registry.take(layout.size, deadline)
            if region is None:
                return None
            try:
                return (yield from self._through(region, layout, arrays, tensors, terms, deadline))
            except NotSharedError:
                self._registry.works = False
                return None
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
        tensors: Sequence[memoryview],
        terms: Terms,
        deadline: float | None,
    ) -> Steps[dict[str, Array]]:
        """Send one request through a region, and free or retire that."""
        answered = False
        try:
            for name, tensor in zip(arrays, tensors, strict=True):
                offset, size = layout.inputs[name]
                region.memory[offset : offset + size] = tensor
            canary = self._canary(region, layout)
            message = head(self._metadata, self._version, region, layout, arrays)
            message += terms.encoded(longest_server_deadline_s=self._metadata.longest_server_deadline_s)
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
            if answered:
                self._registry.give(region)
            else:
                # After a deadline or a cancellation the model may still write into the region.
                self._registry.retire(region)
        return outputs

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
