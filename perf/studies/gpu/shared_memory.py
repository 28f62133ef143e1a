"""Step 2: inputs and outputs in shared memory: this machine's, and on a GPU CUDA's.

Our client copies arrays on a GPU into a region there, and gets answers in this machine's memory. NVIDIA's client puts
both on the GPU. The one request of all ways has the same rows, so the answers are compared with each other.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import np_to_triton_dtype

from clients import Model
from export.graph.samples import sample
from perf.measure.service_time_run import StepProgress
from perf.studies.gpu.answers import check_kind, farthest
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.models import DYNAMIC
from perf.studies.gpu.record import CUDA, NO_GPU, Finding, difference
from serve.launcher import Server, Settings, launch
from serve.management import admin

OURS, THEIRS = "our client, inputs on the GPU", "NVIDIA's client, inputs and outputs on the GPU"
SYSTEM_OURS = "our client, inputs and outputs in system shared memory"
SYSTEM = "NVIDIA's client, inputs and outputs in system shared memory"
COUNT = "regions on the GPU that our client registered"
# Takes a client, the name of a region, what `create` returned, its bytes, and the headers for the admin API.
Register = Callable[[triton.InferenceServerClient, str, Any, int, Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One kind of shared memory in NVIDIA's client: its module, and how a region is made and registered."""

    module: Any
    create: Callable[[str, int], Any]
    register: Register
    unregister: Callable[[triton.InferenceServerClient, str, Mapping[str, str]], None]


def system_memory() -> Memory:
    """Memory of this machine."""
    from tritonclient.utils import shared_memory

    return Memory(
        module=shared_memory,
        create=lambda name, size: shared_memory.create_shared_memory_region(name, f"/{name}", size),
        register=lambda client, name, _, size, headers: client.register_system_shared_memory(
            name, f"/{name}", size, headers=headers
        ),
        unregister=lambda client, name, headers: client.unregister_system_shared_memory(name, headers=headers),
    )


def cuda_memory() -> Memory:
    """Memory of the first GPU; raises `RuntimeError` without the package cuda-python."""
    from tritonclient.utils import cuda_shared_memory

    return Memory(
        module=cuda_shared_memory,
        create=lambda name, size: cuda_shared_memory.create_shared_memory_region(name, size, 0),
        register=lambda client, name, handle, size, headers: client.register_cuda_shared_memory(
            name, cuda_shared_memory.get_raw_handle(handle), 0, size, headers=headers
        ),
        unregister=lambda client, name, headers: client.unregister_cuda_shared_memory(name, headers=headers),
    )


class OnGpu:
    """An array on the first GPU that onnxruntime put there, with the interface that torch, CuPy and Numba have."""

    def __init__(self, array: NDArray[Any]) -> None:
        import onnxruntime

        onnxruntime.preload_dlls()
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self._value.data_ptr(), False),
            "version": 3,
        }


def shared_memory(extent: Extent, _: Path, progress: StepProgress) -> list[Finding]:
    """Every way on one server, against the answer that travels in a message."""
    # On a CPU the same rows have the same answer, to the bit.
    name, limit = extent.transport, extent.tolerance if extent.device == CUDA else 0.0
    with launch(Settings(models=(name,), config_name=DYNAMIC), progress=lambda text: progress(text, False)) as server:
        config = server.configs[name]
        check_kind(config, extent.device)
        rows = sample(config, rows=config.max_batch_size, seed=1)
        right = in_message(server, config, rows)
        found = [
            difference(SYSTEM_OURS, ours(server, config, rows, right)[0], limit),
            difference(SYSTEM, theirs(system_memory(), server, config, rows, right), limit),
        ]
        if extent.device != CUDA:
            return [*found, *(Finding(what=what, note=NO_GPU) for what in (OURS, COUNT, THEIRS))]
        far, regions = ours(server, config, {key: OnGpu(array) for key, array in rows.items()}, right)
        missing = "" if regions else "the server refused the memory, so bytes went through this machine's"
        found += [difference(OURS, far, limit), Finding(what=COUNT, value=regions, note=missing)]
        try:
            cuda = cuda_memory()
        except (RuntimeError, ImportError) as error:
            return [*found, Finding(what=THEIRS, note=f"not run: {error}")]
        return [*found, difference(THEIRS, theirs(cuda, server, config, rows, right), limit)]


def in_message(server: Server, config: ModelConfig, rows: Mapping[str, Any]) -> list[NDArray[Any]]:
    """The outputs of a request without shared memory."""
    with Model(config.name, url=server.grpc_url, transport="grpc") as model:
        answer = model.predict(rows)
    return list(answer) if isinstance(answer, tuple) else [answer]


def ours(server: Server, config: ModelConfig, rows: Mapping[str, Any], right: list[NDArray[Any]]) -> tuple[float, int]:
    """The difference of our client's answer, and how many regions of a GPU it registered for it."""
    with (
        Model(config.name, url=server.grpc_url, transport="shared_memory") as model,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        far = farthest(model.predict(rows), right)
        regions = client.get_cuda_shared_memory_status(headers=admin.headers(server.grpc_url)).regions
        return far, len(regions)


def theirs(
    memory: Memory, server: Server, config: ModelConfig, rows: Mapping[str, Any], right: list[NDArray[Any]]
) -> float:
    """The difference of the answer to NVIDIA's client, with a region for each input and output."""
    headers = admin.headers(server.grpc_url)
    with triton.InferenceServerClient(server.grpc_url) as client, contextlib.ExitStack() as stack:

        def region(size: int) -> tuple[str, Any]:
            return stack.enter_context(_region(memory, client, size, headers))

        inputs, outputs, handles = [], [], []
        for key, array in rows.items():
            name, handle = region(array.nbytes)
            memory.module.set_shared_memory_region(handle, [np.ascontiguousarray(array)])
            inputs.append(triton.InferInput(key, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_shared_memory(name, array.nbytes)
        for tensor, array in zip(config.output, right, strict=True):
            name, handle = region(array.nbytes)
            outputs.append(triton.InferRequestedOutput(tensor.name))
            outputs[-1].set_shared_memory(name, array.nbytes)
            handles.append(handle)
        client.infer(config.name, inputs, outputs=outputs)
        read = memory.module.get_contents_as_numpy
        # A copy, because system shared memory is gone with its region.
        answer = [np.array(read(handle, each.dtype, each.shape)) for handle, each in zip(handles, right, strict=True)]
    return farthest(tuple(answer), right)


@contextlib.contextmanager
def _region(
    memory: Memory, client: triton.InferenceServerClient, size: int, headers: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """A region that the server knows, by its name, and what NVIDIA's client calls its handle."""
    name = f"triton_batching_gpu_{secrets.token_hex(6)}"
    handle = memory.create(name, size)
    try:
        memory.register(client, name, handle, size, headers)
        yield name, handle
        memory.unregister(client, name, headers)
    finally:
        memory.module.destroy_shared_memory_region(handle)
