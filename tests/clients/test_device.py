"""Arrays on a GPU, with a stand-in for the driver: the checks, and the thread on which CUDA is called."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients import InvalidInputError, device_memory
from clients.contract import Array, Metadata
from clients.device_memory import DeviceArray
from clients.endpoint import Endpoint
from clients.layout import contents
from clients.shared_memory import SharedMemory
from clients.steps import Step, run_async
from clients.terms import Terms

CONFIG = """name: "m" max_batch_size: 4
input { name: "x" data_type: TYPE_%s dims: [ 2 ] } output { name: "y" data_type: TYPE_BOOL dims: [ 1 ] }"""


def metadata(kind: str = "FP32") -> Metadata:
    return Metadata.of(text_format.Parse(CONFIG % kind, ModelConfig()))


class OnDevice:
    """The interface of an array on a GPU. Without elements it has no memory, so no GPU is needed."""

    def __init__(self, shape: Any, typestr: str = "<f4", pointer: Any = 0, strides: Any = None) -> None:
        described = {"shape": shape, "typestr": typestr, "data": (pointer, False), "version": 3, "strides": strides}
        self.__cuda_array_interface__ = described


class Driver:
    """Says yes to everything, or `refuses` one call; `calls` are the names and threads of all of them."""

    def __init__(self, refuses: str = "") -> None:
        self.calls: list[tuple[str, int]] = []
        self._refuses = refuses

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: object) -> int:
            self.calls.append((name, threading.get_ident()))
            return int(name == self._refuses)

        return call

    def names(self) -> list[str]:
        return [name.removesuffix("_v2") for name, _ in self.calls]


def driven(monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> Driver:
    driver = Driver(refuses)
    monkeypatch.setattr(device_memory, "_cuda", lambda: driver)
    monkeypatch.setattr(device_memory, "_primary", lambda _: None)
    return driver


def far(rows: int = 1) -> dict[str, Array]:
    return metadata().check([OnDevice((rows, 2), pointer=4096)])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((), r'"x" has shape \[-1, 2\], got \[\]'),
        ((0, 2), "1 to 4 rows .* got 0"),
        ((0, 3), r'"x" has shape \[-1, 2\], got \[0, 3\]'),
        ((5, 2), "1 to 4 rows .* got 5"),
    ],
)
def test_an_array_without_rows_is_checked_without_a_copy(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        metadata().check([OnDevice(shape)])


def test_an_array_on_a_gpu_is_checked_without_a_copy() -> None:
    model = Metadata.of(text_format.Parse(CONFIG.replace("[ 2 ]", "[ 2, -1 ]") % "FP32", ModelConfig()))
    owner = OnDevice((3, 2, 0), strides=(0, 0, 4))
    remote: Any = model.check([owner])["x"]
    assert (remote.owner, remote.shape, remote.dtype, remote.nbytes, len(remote)) == (owner, (3, 2, 0), "f4", 0, 3)
    with pytest.raises(InvalidInputError, match="got float64"):
        model.check([OnDevice((3, 2, 0), "<f8")])
    with pytest.raises(InvalidInputError, match="must be contiguous"):
        model.check([OnDevice((3, 2, 4), strides=(8, 4, 24))])


def test_bf16_of_torch_is_recognised() -> None:
    bf16 = Metadata.of(text_format.Parse(CONFIG.replace("[ 2 ]", "[ 0 ]") % "BF16", ModelConfig()))
    array: Any = bf16.check([OnDevice((1, 0), "<V2")])["x"]
    assert isinstance(array, DeviceArray)
    assert array.dtype == ml_dtypes.bfloat16
    with pytest.raises(InvalidInputError, match=r"FP32, got \|V2"):
        metadata().check([OnDevice((1, 2), "<V2")])


@pytest.mark.parametrize(
    ("shape", "typestr", "pointer"), [(None, "<f4", 0), ((1, 2), "?!", 0), ((1, 2), "<f4", "x"), ((1, 2), "<f4", 4096)]
)
def test_an_array_on_no_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, shape: Any, typestr: str, pointer: Any) -> None:
    driven(monkeypatch, refuses="cuPointerGetAttribute")
    with pytest.raises(InvalidInputError, match="has a __cuda_array_interface__, but no array is found on a GPU"):
        metadata().check([OnDevice(shape, typestr, pointer)])


async def answered(step: Step) -> Any:
    """The answer of a server that accepts every step."""
    if step.method == "SystemSharedMemoryStatus":
        return pb.SystemSharedMemoryStatusResponse()
    response = pb.ModelInferResponse()
    response.outputs.add(name="y", datatype="BOOL", shape=[1, 1])
    return response


def ask(shared: SharedMemory, arrays: dict[str, Array]) -> dict[str, Array] | None:
    async def together() -> dict[str, Array] | None:
        try:
            return await run_async(shared.infer(arrays, Terms()), answered)
        finally:
            await run_async(shared.close(), answered)

    return asyncio.run(together())


def test_cuda_is_not_waited_for_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driven(monkeypatch)
    arrays = far()
    driver.calls.clear()
    assert ask(SharedMemory(metadata(), Endpoint.of("localhost:1"), ""), arrays) is not None
    calls = [name for name in driver.names() if name not in ("cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemFree")]
    assert calls == ["cuMemAlloc", "cuIpcGetMemHandle", "cuCtxSynchronize", "cuMemcpyDtoD", "cuCtxSynchronize"]
    here = {name for name, thread in driver.calls if thread == threading.get_ident()}
    assert here <= {"cuCtxPushCurrent_v2", "cuMemFree_v2", "cuCtxPopCurrent_v2"}


@pytest.mark.parametrize("refuses", ["cuMemAlloc_v2", "cuIpcGetMemHandle", "cuMemcpyDtoD_v2", "cuCtxSynchronize"])
def test_where_cuda_refuses_the_bytes_go_through_this_machines_memory(
    monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    driver = driven(monkeypatch, refuses)
    assert ask(SharedMemory(metadata(), Endpoint.of("localhost:1"), ""), far()) is not None
    (reader,) = [thread for name, thread in driver.calls if name == "cuMemcpyDtoH_v2"]
    assert reader != threading.get_ident()


def test_a_gpu_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, "cuMemcpyDtoH_v2")
    with pytest.raises(InvalidInputError, match="cannot be read from GPU 0"):
        asyncio.run(run_async(contents(far().values()), answered))
