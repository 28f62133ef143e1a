"""Four thousand requests of random valid and invalid shapes from 32 clients at once: only right answers and errors."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import Bench
from onnx import TensorProto, helper
from processes import descendants
from tiny_models import parameters, ragged_padded, save
from unchecked import connect

from clients.errors import RequestFailedError

pytestmark = pytest.mark.server

REQUESTS = 4_000
CLIENTS = 32
HALF = REQUESTS // 2
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 500 }"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request, and its right output or words of its error."""

    model: str
    array: Array
    output: Array | None = None
    error: str = ""


def models(repository: Path) -> None:
    """`dense` and `texts` return their input; `ragged` splits batches by the latencies that it learns."""
    for name, onnx_type, kind in (("dense", TensorProto.FLOAT, "FP32"), ("texts", TensorProto.STRING, "STRING")):
        graph = helper.make_graph(
            [helper.make_node("Identity", ["X"], ["Y"])],
            name,
            [helper.make_tensor_value_info("X", onnx_type, ["rows", "values"])],
            [helper.make_tensor_value_info("Y", onnx_type, ["rows", "values"])],
        )
        declared = "".join(
            f'{place} [ {{ name: "{tensor}" data_type: TYPE_{kind} dims: [ -1 ] }} ]\n'
            for place, tensor in (("input", "X"), ("output", "Y"))
        )
        save(repository, name, graph, f"max_batch_size: 8\n{declared}{BATCHING}")
    ragged_padded(repository, "ragged", guard=True, rows=16, config=parameters(padding_budget="latency") + BATCHING)


def dense(rng: np.random.Generator) -> Case:
    array = rng.normal(size=(rng.integers(1, 9), rng.integers(1, 5) * 500)).astype(np.float32)
    return Case(model="dense", array=array, output=array)


def ragged(rng: np.random.Generator) -> Case:
    length, value = int(rng.integers(1, 400)), int(rng.integers(0, 7))
    array = np.full((1, length), value, dtype=np.float32)
    return Case(model="ragged", array=array, output=np.array([[length * value]], dtype=np.float32))


def texts(rng: np.random.Generator) -> Case:
    array = np.array([[b"word" * int(rng.integers(0, 9)) for _ in range(3)]], dtype=np.object_)
    return Case(model="texts", array=array, output=array)


def spoiler(rng: np.random.Generator) -> Case:
    """A request with which every run of onnxruntime fails."""
    return Case(model="ragged", array=np.full((1, rng.integers(1, 50)), 7, dtype=np.float32), error="onnxruntime")


def two_items(rng: np.random.Generator) -> Case:
    """The graph returns one answer per request, which is one too few for a request of two rows."""
    return Case(model="ragged", array=np.ones((2, rng.integers(1, 50)), dtype=np.float32), error="expected batch size")


def no_text(_: np.random.Generator) -> Case:
    return Case(model="texts", array=np.array([[b"\xff\xfe"]], dtype=np.object_), error="not UTF-8")


def wrong_type(rng: np.random.Generator) -> Case:
    return Case(model="dense", array=np.ones((1, rng.integers(1, 50)), dtype=np.int32), error="data-type")


def wrong_rank(rng: np.random.Generator) -> Case:
    shape = (1,) * int(rng.integers(3, 5))
    return Case(model="ragged", array=np.ones(shape, dtype=np.float32), error="unexpected shape")


def too_many_rows(rng: np.random.Generator) -> Case:
    return Case(model="dense", array=np.ones((rng.integers(9, 99), 3), dtype=np.float32), error="batch-size must be")


VALID: list[Callable[[np.random.Generator], Case]] = [dense, ragged, ragged, texts]
INVALID = [spoiler, two_items, no_text, wrong_type, wrong_rank, too_many_rows]


def shared_memory_bytes(guard: int) -> int:
    """Sizes of the shared-memory regions of the server with this guard, and of its stubs."""
    regions = set()
    for process in descendants(guard):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            if "/dev/shm/" in line:
                regions.add(Path(line[line.index("/dev/shm/") :]))
    return sum(region.stat().st_size for region in regions if region.exists())


async def one_client(url: str, number: int, counted: Counter[str], at_half: Callable[[], None]) -> None:
    rng = np.random.default_rng(number)
    async with connect(url) as connection:
        while counted["sent"] < REQUESTS:
            counted["sent"] += 1
            if counted["sent"] == HALF:
                at_half()
            kinds = INVALID if rng.random() < 0.15 else VALID
            case = kinds[int(rng.integers(len(kinds)))](rng)
            counted[await verdict(connection, case)] += 1


async def verdict(connection: Any, case: Case) -> str:
    try:
        answer = (await connection.infer(case.model, {"X": case.array}, timeout_s=30))["Y"]
    except RequestFailedError as error:
        return "refused" if case.error and case.error in str(error) else f"{case}: {error}"
    if case.output is None:
        return f"{case}: answered with {answer}"
    answer = answer[:, :1] if case.model == "ragged" else answer
    same = answer.shape == case.output.shape and bool(np.all(answer == case.output))
    return "right" if same else f"{case}: wrong, {answer}"


def test_no_crash_no_hang_no_wrong_answer(bench: Bench, tmp_path: Path) -> None:
    models(tmp_path)
    counted: Counter[str] = Counter()
    plateau: list[int] = []

    async def everyone(url: str, guard: int) -> None:
        def at_half() -> None:
            plateau.append(shared_memory_bytes(guard))

        await asyncio.gather(*(one_client(url, number, counted, at_half) for number in range(CLIENTS)))

    with bench.serving(("dense", "ragged", "texts"), tmp_path) as running:
        asyncio.run(asyncio.wait_for(everyone(running.grpc_url, running.pid), timeout=120))
        assert running.running()
        after = shared_memory_bytes(running.pid)
    others = {key: count for key, count in counted.items() if key not in ("sent", "right", "refused")}
    assert not others
    assert counted["sent"] == REQUESTS == counted["right"] + counted["refused"]
    assert counted["refused"] > REQUESTS // 10
    assert 0 < after <= plateau[0]
