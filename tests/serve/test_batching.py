"""The executions of the real server: exact batches, right answers, and errors that stay with their request."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from processes import wait_until
from sleepers import PLAIN
from tiny_models import lookup

from clients.async_connection import connect
from clients.errors import RequestFailedError
from export.graph.samples import sample
from export.repository import REPOSITORY, config_file, model_file, model_folder, models, read_config, variants
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters

Array = NDArray[Any]
pytestmark = pytest.mark.server

ROWS = [4, 2, 2, 6, 2]


async def send(url: str, model: str, arrays: list[Array], *, gap_s: float = 0.0) -> list[Array]:
    """One request per array, in this order, all in flight together; the first output of each."""
    async with connect(url) as connection:
        name = read_config(config_file(model_folder(model), None)).input[0].name

        async def ask(index: int, array: Array) -> Array:
            # The order of arrival is part of what is tested, so each request waits for its turn.
            await asyncio.sleep(index * gap_s)
            return next(iter((await connection.infer(model, {name: array})).values()))

        return await asyncio.gather(*(ask(index, array) for index, array in enumerate(arrays)))


def test_five_requests_of_4_2_2_6_2_rows_are_two_executions() -> None:
    """The tutorial's A-E example: with a limit of 8 rows the batcher forms A+B+C and D+E."""
    model = "simulated_accelerator"
    # The batcher waits until five requests are queued, so no timing decides what runs together.
    settings = Settings(
        models=(model,), config_name="dynamic", environment={"TRITONSERVER_DELAY_SCHEDULER": "5"}, arguments=PLAIN
    )
    rng = np.random.default_rng(1)
    pictures = [rng.uniform(-1, 1, (rows, 1, 32, 100)).astype(np.float32) for rows in ROWS]
    with launch(settings) as running:
        answers = asyncio.run(send(running.grpc_url, model, pictures, gap_s=0.02))
        # The server answers first and counts then.
        wait_until(lambda: Counters.read(running.grpc_url, model).requests == len(ROWS), seconds=10)
        counted = Counters.read(running.grpc_url, model)
    assert counted.batches == {8: 2}
    assert (counted.rows, counted.requests, counted.executions) == (sum(ROWS), len(ROWS), 2)
    for picture, answer in zip(pictures, answers, strict=True):
        # Each row's answer is the mean of its own picture, so a mixed-up row would show.
        expected = picture.mean(axis=(1, 2, 3))
        assert answer.shape == (len(picture), 26, 37)
        np.testing.assert_allclose(answer, np.broadcast_to(expected[:, None, None], answer.shape), atol=1e-6)


@pytest.mark.parametrize("config_name", ["baseline", "dynamic_2_instances"])
def test_every_model_answers_right_with_one_and_two_instances(config_name: str) -> None:
    """All models with a fixed shape on one server. The right answers are onnxruntime's; the stand-in answers means."""
    expected: dict[str, Array] = {}
    inputs: dict[str, Array] = {}
    for model in models():
        folder = model_folder(model)
        if model == "text_recognition_512" and config_name != "baseline":
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
    with launch(Settings(models=tuple(inputs), config_name=config_name, arguments=PLAIN)) as running:
        for model, array in inputs.items():
            answers = asyncio.run(send(running.grpc_url, model, [array[:1], array[1:]]))
            np.testing.assert_allclose(np.concatenate(answers), expected[model], rtol=1e-3, atol=1e-4)


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


def test_a_request_over_the_limit_is_refused_with_the_limit(server: Server) -> None:
    too_many = np.zeros((65, 2, 256), dtype=np.float32)
    with pytest.raises(RequestFailedError, match="batch-size must be <= 64"):
        asyncio.run(send(server.grpc_url, "ranker", [too_many]))


def test_one_failing_request_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    lookup(tmp_path)
    settings = Settings(
        models=("lookup",), repository=tmp_path, environment={"TRITONSERVER_DELAY_SCHEDULER": "4"}, arguments=PLAIN
    )

    async def ask(url: str) -> list[object]:
        async with connect(url) as connection:
            indices = [[0], [9], [3], [1]]
            requests = [{"x": np.array([index], dtype=np.float32)} for index in indices]
            return await asyncio.gather(
                *(connection.infer("lookup", request) for request in requests), return_exceptions=True
            )

    with launch(settings) as running:
        answers = asyncio.run(ask(running.grpc_url))
        counted = Counters.read(running.grpc_url, "lookup")
    assert counted.batches == {4: 1}  # they were one execution: the failure could have taken all four
    good = [answer["y"].item() for answer in answers if isinstance(answer, dict)]
    assert good == [10, 13, 11]
    assert isinstance(answers[1], RequestFailedError)
    assert "onnxruntime" in str(answers[1])
    assert "idx=9" in str(answers[1])


def test_the_full_config_is_reported_by_the_server(server: Server) -> None:
    """Triton completes the configuration: the preferred batch size is the maximum."""
    with triton.InferenceServerClient(server.grpc_url) as client:
        config = client.get_model_config("ranker").config
    assert list(config.dynamic_batching.preferred_batch_size) == [64]
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
