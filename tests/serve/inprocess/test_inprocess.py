"""Models in this process: batches, deadlines, cancellation, the end, forks, and what is refused, without a server."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import client_models
import numpy as np
import pytest
from onnx import helper
from policy_models import stand_in
from tiny_models import onnx_model, python_model

from clients import (
    AsyncModel,
    ClosedError,
    InvalidInputError,
    Model,
    NotReadyError,
    RejectedError,
    ServerFailureError,
    TimedOutError,
    TransportError,
)
from serve import inprocess

ROOT = Path(__file__).parents[3]
ONE = np.ones((1, 1), np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of client_models.py, and `double`, an ONNX model with a delay of 0.2 s."""
    folder = client_models.build(tmp_path_factory.mktemp("models"))
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    config = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
    onnx_model(folder, "double", nodes, dims=(2, 2), config=config)
    return folder


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


def test_an_async_model_opens_again_after_its_end(repository: Path) -> None:
    model = AsyncModel("double", transport=inprocess.open_async(repository))

    async def once() -> float:
        async with model:
            return float((await model.predict(np.ones((8, 2), np.float32)))[0, 0])

    assert [asyncio.run(once()), asyncio.run(once())] == [2.0, 2.0]


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


def test_close_answers_the_call_that_runs_and_ends_those_that_wait(repository: Path) -> None:
    model = Model("queued", transport=inprocess.open(repository))
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(model.predict, 0.4 * ONE)
        time.sleep(0.1)
        waiting = [pool.submit(model.predict, ONE) for _ in range(2)]
        time.sleep(0.1)
        model.close()
        assert running.result().item() == 1
        for future in waiting:
            with pytest.raises(ClosedError):
                future.result()
    with pytest.raises(ClosedError):
        model.predict(ONE)


def test_close_does_not_wait_for_ever(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.inprocess.loaded.CLOSE_S", 0.2)
    model = Model("slow", transport=inprocess.open(repository))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(model.predict, 1.5 * ONE)
        time.sleep(0.1)
        started = time.monotonic()
        model.close()
        with pytest.raises(ClosedError):
            running.result(1)
        assert time.monotonic() - started < 1


def test_asyncio_close_ends_calls_in_flight(repository: Path) -> None:
    async def calls() -> list[Any]:
        async with AsyncModel("queued", transport=inprocess.open_async(repository)) as model:
            tasks = [asyncio.create_task(model.predict(0.3 * ONE)) for _ in range(3)]
            await asyncio.sleep(0.1)
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(calls())
    assert first.item() == 1
    assert [type(error) for error in others] == [ClosedError] * 2


def test_threads_and_modules_are_gone_after_the_end(repository: Path) -> None:
    modules, paths = set(sys.modules), list(sys.path)
    with Model("double", transport=inprocess.open(repository)) as model:
        model.predict(np.ones((8, 2), np.float32))
        assert any(thread.name == "inprocess double_0_0" for thread in threading.enumerate())
    assert not any("double" in thread.name for thread in threading.enumerate())
    assert sys.path == paths
    assert not {name for name in set(sys.modules) - modules if name in ("model", "session", "parameters", "executor")}
    assert not gc.get_freeze_count()


def test_modules_of_the_user_are_neither_taken_nor_replaced(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = object()
    for name in ("parameters", "session", "model", "triton_python_backend_utils"):
        monkeypatch.setitem(sys.modules, name, own)
    with Model("double", transport=inprocess.open(repository)) as model:
        np.testing.assert_array_equal(model.predict(np.ones((8, 2), np.float32)), np.full((8, 2), 2))
    assert sys.modules["session"] is own


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


CLOSED = (
    "'double' was closed, or was made by the process that this one was forked from. Make one in each process, and call "
    "it before it is closed."
)
PROGRAM = """
import os, sys, threading, time
import numpy as np
from clients import ClosedError, Model
from serve import inprocess

ONE = np.ones((1, 1), np.float32)
model = Model("slow", transport=inprocess.open(sys.argv[1]))
double = Model("double", transport=inprocess.open(sys.argv[1]))
{body}
"""
ENDS = {
    # Python ends while a thread of the caller waits for an answer.
    "exit": """
def call():
    try:
        model.predict(0.5 * ONE)
        print("answered", flush=True)
    except ClosedError:
        print("closed", flush=True)
threading.Thread(target=call, daemon=True).start()
time.sleep(0.2)
sys.exit(7)
""",
    "forked": """
import multiprocessing
model.predict(0 * ONE)
double.predict(np.ones((8, 2), np.float32))
transport = inprocess.open(sys.argv[1])
def child():
    for call in (lambda: double.predict(np.ones((8, 2), np.float32)), lambda: Model("double", transport=transport)):
        try:
            call()
        except ClosedError as error:
            print("child:", error, flush=True)
    double.close()
    with Model("double", transport=inprocess.open(sys.argv[1])) as own:
        print("child:", own.predict(np.ones((8, 2), np.float32))[0], flush=True)
# After os.fork alone, a child that ends by sys.exit waits for the parent's threads: onnxruntime itself does that.
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print("parent:", process.exitcode, model.predict(0 * ONE).item(), flush=True)
sys.exit(7)
""",
    "interrupted": """
import signal
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    model.predict(2 * ONE)
except KeyboardInterrupt:
    print("interrupted", flush=True)
double.predict(np.ones((8, 2), np.float32))
sys.exit(7)
""",
}


@pytest.mark.parametrize(
    ("how", "printed"),
    [
        ("exit", ()),  # Python may freeze the caller's thread before it prints its answer
        ("forked", (f"child: {CLOSED}\nchild: {CLOSED}\nchild: [2. 2.]\nparent: 0 2.0\n",)),
        ("interrupted", ("interrupted",)),
    ],
)
def test_a_program_ends_without_hanging(repository: Path, how: str, printed: tuple[str, ...]) -> None:
    program = PROGRAM.replace("{body}", ENDS[how])
    ended = subprocess.run(
        [sys.executable, "-c", program, str(repository)], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 7, ended.stderr
    assert ended.stderr == ""
    for text in printed:
        assert text in ended.stdout


REFUSED: dict[str, tuple[str, type[Exception], str]] = {
    "ensemble": ('platform: "ensemble" ensemble_scheduling { }', TransportError, "has ensemble_scheduling"),
    "sequence": ('backend: "onnxruntime" sequence_batching { }', TransportError, "has sequence_batching"),
    "other": ('backend: "tensorrt_plan"', TransportError, "has the backend 'tensorrt_plan'"),
    "stream": ('backend: "python" model_transaction_policy { decoupled: true }', TransportError, "is decoupled"),
    "calls": (
        'backend: "python" parameters { key: "steps" value { string_value: "a,b" } }',
        TransportError,
        r"calls other models \(a, b\)",
    ),
    "typed": ("max_batch: 3", NotReadyError, "config.pbtxt: not a model configuration"),
    "absent": ('backend: "onnxruntime"', NotReadyError, "unable to find '.*model.onnx' for model instance 'absent'"),
    "on_gpu": (
        'backend: "onnxruntime" input { name: "x" } output { name: "y" } instance_group { kind: KIND_GPU }',
        NotReadyError,
        "has kind KIND_GPU but no GPUs are available",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_server_or_cannot_load_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text, kind, words = REFUSED[name]
    (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / name / "config.pbtxt").write_text(text)
    with pytest.raises(kind, match=words) as refused:
        Model(name, transport=inprocess.open(tmp_path))
    assert "\n" not in str(refused.value)
    if kind is TransportError:
        assert f"Start one, make serve MODEL={name}" in str(refused.value)


@pytest.mark.parametrize(("name", "version"), [("nothing", ""), ("double", "7"), ("double/..", ""), ("", "")])
def test_an_unknown_model_or_version_names_what_there_is(repository: Path, name: str, version: str) -> None:
    with pytest.raises(NotReadyError, match=r"Request for unknown model: .* It(s versions: 1| has: asked, double, )"):
        Model(name, version=version, transport=inprocess.open(repository))


def test_calls_of_other_methods_and_of_closed_transports(repository: Path) -> None:
    transport = inprocess.open(repository)
    with Model("double", transport=transport) as model:
        with pytest.raises(InvalidInputError):
            model.predict(np.ones((9, 2), np.float32))
        double: Callable[..., Any] = model.predict
    with pytest.raises(ClosedError):
        double(np.ones((1, 2), np.float32))


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
