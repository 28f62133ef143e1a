"""Calls of models in this process: batches, deadlines, cancellation and answers, without a server."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_models import stand_in
from tiny_models import python_model

from clients import (
    AsyncModel,
    Model,
    RejectedError,
    ServerFailureError,
    TimedOutError,
)
from serve import inprocess
from serve.inprocess.loaded import Statistics

ROOT = Path(__file__).parents[3]
ONE = np.ones((1, 1), np.float32)


@pytest.fixture
def slow(repository: Path) -> Iterator[Model]:
    with Model("slow", transport=inprocess.open(repository)) as model:
        yield model


def test_callers_in_threads_share_executions(repository: Path) -> None:
    transport = inprocess.open(repository)
    with Model("double", transport=transport) as model, ThreadPoolExecutor(16) as pool:
        rows = np.arange(32, dtype=np.float32).reshape(16, 1, 2)
        answers = list(pool.map(model.predict, rows))
        statistics = transport.statistics("double")
    np.testing.assert_array_equal(answers, 2 * rows)
    assert sum(size * count for size, count in statistics.executions.items()) == 16
    assert statistics.rows_per_execution > 4


def test_an_execution_counts_when_it_has_ended(repository: Path) -> None:
    transport = inprocess.open(repository)
    with Model("slow", transport=transport) as model, ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        running = pool.submit(model.predict, 0.5 * ONE)
        time.sleep(0.1)
        assert transport.statistics("slow") == Statistics(executions={}, ended=0.0)
        running.result()
        statistics = transport.statistics("slow")
    assert (statistics.executions, statistics.rows) == ({1: 1}, 1)
    assert began + 0.5 <= statistics.ended <= time.perf_counter()


def test_tasks_share_executions_and_requests_of_several_rows_stay_whole(repository: Path) -> None:
    transport = inprocess.open_async(repository)
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (1, 3, 4, 5, 3)]

    async def calls() -> list[Any]:
        async with AsyncModel("double", transport=transport) as model:
            answers = await asyncio.gather(*map(model.predict, arrays))
            assert transport.statistics("double").executions == {8: 2}
            return answers

    for answer, array in zip(asyncio.run(calls()), arrays, strict=True):
        np.testing.assert_array_equal(answer, 2 * array)


def test_calls_are_merged_over_it(repository: Path) -> None:
    transport = inprocess.open_async(repository)

    async def calls() -> Any:
        async with AsyncModel("picky", transport=transport, coalesce=True) as model:
            return await asyncio.gather(*(model.predict(number * ONE) for number in (4, -1, 9)), return_exceptions=True)

    four, failed, nine = asyncio.run(calls())
    assert (four.item(), nine.item()) == (2.0, 3.0)
    assert isinstance(failed, ServerFailureError)
    assert failed.text == "no roots of negative numbers"


def test_a_deadline_ends_a_call_and_a_request_that_still_waits_never_runs(slow: Model) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.predict, 0.5 * ONE)
        time.sleep(0.1)
        started = time.monotonic()
        with pytest.raises(TimedOutError, match=r"no answer within 0.1 s"):
            slow.predict(ONE, timeout_s=0.1)
        assert time.monotonic() - started < 0.3
        first.result()
        assert slow.predict(0 * ONE).item() == 2  # the second execution


def test_a_request_is_given_up_in_the_queue_at_its_timeout(repository: Path) -> None:
    with Model("queued", transport=inprocess.open(repository)) as model, ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.predict, 0.5 * ONE)
        time.sleep(0.1)
        with pytest.raises(TimedOutError, match="Request timeout expired") as late:
            model.predict(ONE, parameters={"timeout": 50_000})
        assert late.value.retryable
        first.result()


def test_the_queue_has_its_size_and_priorities_count(repository: Path) -> None:
    with Model("queued", transport=inprocess.open(repository)) as model, ThreadPoolExecutor(4) as pool:
        pool.submit(model.predict, 0.3 * ONE)
        time.sleep(0.1)
        low = [pool.submit(model.predict, 0 * ONE, priority=2) for _ in range(3)]
        time.sleep(0.05)
        with pytest.raises(RejectedError, match="Exceeds maximum queue size"):
            model.predict(ONE)
        assert model.predict(0 * ONE, priority=1).item() == 2
        assert [future.result().item() for future in low] == [3, 4, 5]


def test_a_cancelled_call_that_waits_never_runs(repository: Path) -> None:
    transport = inprocess.open_async(repository)

    async def calls() -> float:
        async with AsyncModel("slow", transport=transport) as model:
            first = asyncio.create_task(model.predict(0.3 * ONE))
            await asyncio.sleep(0.1)
            second = asyncio.create_task(model.predict(ONE))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            await first
            return float((await model.predict(0 * ONE)).item())

    assert asyncio.run(calls()) == 2


def test_a_model_may_write_into_its_input_but_not_into_the_callers_array(tmp_path: Path) -> None:
    body = """x = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        for array in x:
            array *= 2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in x]"""
    python_model(tmp_path, "writing", body)
    array = 3 * ONE
    with Model("writing", transport=inprocess.open(tmp_path)) as model:
        assert model.predict(array).item() == 6
    assert array.item() == 3


def test_a_model_may_use_the_memory_of_an_answer_again(tmp_path: Path) -> None:
    """Two executions run before the loop reads the first answer."""
    body = """self.buffer = getattr(self, "buffer", np.zeros((1, 1), np.float32))
        self.buffer[:] = pb_utils.get_input_tensor_by_name(requests[0], "x").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.buffer)])]"""
    python_model(tmp_path, "reusing", body)
    file = tmp_path / "reusing" / "1" / "model.py"
    file.write_text("import numpy as np\n" + file.read_text())

    async def calls() -> list[Any]:
        transport = inprocess.open_async(tmp_path)
        async with AsyncModel("reusing", transport=transport) as model:
            tasks = [asyncio.create_task(model.predict(number * ONE)) for number in (1, 2, 3)]
            await asyncio.sleep(0)
            until = time.monotonic() + 5
            while transport.statistics("reusing").executions != {1: 3} and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.05)
            return [answer.item() for answer in await asyncio.gather(*tasks)]

    assert asyncio.run(calls()) == [1, 2, 3]


def test_a_batch_policy_forms_the_batches_as_on_a_server(tmp_path: Path) -> None:
    """A policy answers later, from a thread of its own; at the end it answers what still waits."""
    name = stand_in(tmp_path, "aimd", batch_policy="aimd", slo_ms="100")
    transport = inprocess.open(tmp_path)
    with Model(name, transport=transport) as model, ThreadPoolExecutor(16) as pool:
        rows = [np.full((1, 4), number, np.float32) for number in range(32)]
        answers = list(pool.map(model.predict, rows))
        last = pool.submit(model.predict, rows[7])
        time.sleep(0.01)
        model.close()
        assert last.result().item() == 7
    assert [answer.item() for answer in answers] == list(range(32))


def test_answers_of_a_model_that_are_no_answers_are_its_failure(tmp_path: Path) -> None:
    body = """return [pb_utils.InferenceResponse([pb_utils.Tensor("y", np.ones((1, 1), complex))]) for _ in requests]"""
    python_model(tmp_path, "odd", body)
    (tmp_path / "odd" / "1" / "model.py").write_text(
        "import numpy as np\n" + (tmp_path / "odd" / "1" / "model.py").read_text()
    )
    with (
        Model("odd", transport=inprocess.open(tmp_path)) as model,
        pytest.raises(ServerFailureError, match="complex128"),
    ):
        model.predict(ONE)


def test_a_limit_of_the_queue_counts_the_requests_that_wait_here(tmp_path: Path) -> None:
    """20 ms for each execution of one row: of 64 that wait, few are answered within 200 ms."""
    name = stand_in(tmp_path, "limited", row_ms="0", queue_limit_ms="200")
    file = tmp_path / name / "config.pbtxt"
    file.write_text(file.read_text().replace("dynamic_batching { }", ""))
    with Model(name, transport=inprocess.open(tmp_path)) as model, ThreadPoolExecutor(64) as pool:

        def call(number: int) -> str:
            try:
                return str(model.predict(np.full((1, 4), number, np.float32)).item())
            except RejectedError as error:
                return error.text[:23]

        answers = list(pool.map(call, range(128)))
    refused = answers.count("queue_limit_ms: refused")
    assert refused > 10
    answered = [answer for number, answer in enumerate(answers) if answer == str(float(number))]
    assert answered
    assert len(answered) + refused == 128


@pytest.mark.parametrize("name", ["image_preprocess", "image_postprocess"])
def test_our_python_models_run_with_their_metrics(name: str) -> None:
    with Model(name, transport=inprocess.open(ROOT / "model_repository")) as model:
        if name == "image_preprocess":
            picture = (ROOT / "clients" / "pictures" / "batch.png").read_bytes()
            assert model.predict(np.array([[picture]], object)).shape == (1, 3, 224, 224)
        else:
            labels, _, classes = model.predict(np.eye(1000, dtype=np.float32)[[7]])
            assert classes[0, 0] == 7
            assert labels.shape == (1, 5)
