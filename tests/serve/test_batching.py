"""The executions of the real server: exact batches, right answers, and errors that stay with their request."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from bench import Bench
from numpy.typing import NDArray
from processes import wait_until
from tiny_models import lookup
from unchecked import connect

from clients.errors import RequestFailedError
from export.graph.samples import sample
from export.repository import REPOSITORY, config_file, model_file, model_folder, models, read_config, variants
from serve.launcher import Server
from serve.management.metrics import Metrics
from serve.management.statistics import Counters

Array = NDArray[Any]
pytestmark = pytest.mark.server
# The tutorial's A to E, and three more: the batcher of `held_bench` waits for eight requests.
ROWS = [4, 2, 2, 6, 2, 8, 3, 5]


async def send(server: Server, model: str, arrays: list[Array]) -> list[Array | RequestFailedError]:
    """One request per array, in this order, all in flight together; the first output of each, or its error.

    The order of arrival decides the batches, so each request waits until the server has those before it.
    """
    async with connect(server.grpc_url) as connection:
        name = server.configs[model].input[0].name

        async def ask(array: Array) -> Array | RequestFailedError:
            try:
                return next(iter((await connection.infer(model, {name: array})).values()))
            except RequestFailedError as error:
                return error

        tasks = []
        for number, array in enumerate(arrays, 1):
            tasks.append(asyncio.create_task(ask(array)))
            while number < len(arrays) and Metrics.read(server.metrics_url).pending[model] < number:
                await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks)


def counted(server: Server, model: str, requests: int) -> Counters:
    """What the server has counted of these requests; it answers first."""
    assert wait_until(lambda: Counters.read(server.grpc_url, model).requests == requests, seconds=10)
    return Counters.read(server.grpc_url, model)


def test_batches_are_full_where_requests_fill_them(held_bench: Bench) -> None:
    """With a limit of 8 rows the batcher forms A+B+C, D+E and so on."""
    model = "simulated_accelerator"
    rng = np.random.default_rng(1)
    pictures = [rng.uniform(-1, 1, (rows, 1, 32, 100)).astype(np.float32) for rows in ROWS]
    with held_bench.serving((model,), config_name="dynamic") as server:
        answers = asyncio.run(send(server, model, pictures))
        found = counted(server, model, len(ROWS))
    assert found.batches == {8: 4}
    assert (found.rows, found.requests, found.executions) == (sum(ROWS), len(ROWS), 4)
    for picture, answer in zip(pictures, answers, strict=True):
        # Each row's answer is the mean of its own picture, so a mixed-up row would show.
        expected = picture.mean(axis=(1, 2, 3))
        assert isinstance(answer, np.ndarray)
        assert answer.shape == (len(picture), 26, 37)
        np.testing.assert_allclose(answer, np.broadcast_to(expected[:, None, None], answer.shape), atol=1e-6)


def test_one_failing_request_does_not_fail_its_neighbours(held_bench: Bench, tmp_path: Path) -> None:
    path = lookup(tmp_path) / "config.pbtxt"
    indices = [0, 9, 3, 1, 2, 0, 3, 1]
    assert f"max_batch_size: {len(indices)}" in path.read_text()
    with held_bench.serving(("lookup",), tmp_path) as server:
        arrays = [np.array([[index]], dtype=np.float32) for index in indices]
        answers = asyncio.run(send(server, "lookup", arrays))
        found = counted(server, "lookup", len(indices))
    # They were one execution: the failure could have taken all eight.
    assert found.batches == {8: 1}
    failed = answers.pop(1)
    assert [answer.item() for answer in answers if isinstance(answer, np.ndarray)] == [10, 13, 11, 12, 10, 13, 11]
    assert isinstance(failed, RequestFailedError)
    assert "onnxruntime" in str(failed)
    assert "idx=9" in str(failed)


@pytest.mark.parametrize("config_name", ["baseline", "dynamic_2_instances"])
def test_every_model_answers_right_with_one_and_two_instances(bench: Bench, config_name: str) -> None:
    """All models with a fixed shape on one server. The right answers are onnxruntime's; the stand-in answers means."""
    expected: dict[str, Array] = {}
    inputs: dict[str, Array] = {}
    for model in models():
        folder = model_folder(model)
        if model == "text_recognition_512":
            continue  # the same graph as text_recognition, and twice its 177 MB take long to load
        config = read_config(config_file(folder, config_name))
        if len(config.input) != 1 or config.input[0].allow_ragged_batch or -1 in config.input[0].dims:
            continue  # lengths that differ have tests of their own
        if config.backend != "onnxruntime" and model != "simulated_accelerator":
            continue  # so have pictures and pages
        drawn = sample(config, rows=3, seed=7)
        inputs[model] = next(iter(drawn.values()))
        if config.backend == "onnxruntime":
            path = str(model_file(folder, config))
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            expected[model] = session.run(None, drawn)[0]
        else:
            means = inputs[model].mean(axis=(1, 2, 3))
            expected[model] = np.broadcast_to(means[:, None, None], (3, 26, 37))
    assert len(inputs) >= 4
    with bench.serving(tuple(inputs), config_name=config_name) as server:
        for model, array in inputs.items():
            parts = [asyncio.run(send(server, model, [part]))[0] for part in (array[:1], array[1:])]
            found = np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
            np.testing.assert_allclose(found, expected[model], rtol=1e-3, atol=1e-4)
        # 64 rows are the most.
        [refused] = asyncio.run(send(server, "ranker", [np.zeros((65, 2, 256), dtype=np.float32)]))
        assert "batch-size must be <= 64" in str(refused)


def test_each_variant_batches_as_its_name_says() -> None:
    for model in models():
        folder = REPOSITORY / model
        names = ["baseline", "dynamic", "dynamic_2_instances"]
        assert set(names) <= set(variants(folder))
        configs = {name: read_config(config_file(folder, name)) for name in names}
        if all(config.HasField("ensemble_scheduling") for config in configs.values()):
            continue  # its variants name those of its steps, which are among these models
        assert [configs[name].HasField("dynamic_batching") for name in names] == [False, True, True]
        assert [configs[name].instance_group[0].count for name in names] == [1, 1, 2]
        if configs["dynamic"].backend == "onnxruntime":
            assert all(group.kind == 0 for config in configs.values() for group in config.instance_group)  # KIND_AUTO
