"""The end of models in this process: `close`, forks, programs that end, and what stays behind."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients import (
    AsyncModel,
    ClosedError,
    InvalidInputError,
    Model,
)
from serve import inprocess

ROOT = Path(__file__).parents[3]
ONE = np.ones((1, 1), np.float32)


def test_an_async_model_opens_again_after_its_end(repository: Path) -> None:
    model = AsyncModel("double", transport=inprocess.open_async(repository))

    async def once() -> float:
        async with model:
            return float((await model.predict(np.ones((8, 2), np.float32)))[0, 0])

    assert [asyncio.run(once()), asyncio.run(once())] == [2.0, 2.0]


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


def test_calls_of_other_methods_and_of_closed_transports(repository: Path) -> None:
    transport = inprocess.open(repository)
    with Model("double", transport=transport) as model:
        with pytest.raises(InvalidInputError):
            model.predict(np.ones((9, 2), np.float32))
        double: Callable[..., Any] = model.predict
    with pytest.raises(ClosedError):
        double(np.ones((1, 2), np.float32))


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
