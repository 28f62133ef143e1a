"""A process that opens a client, forks, and prints what its child saw and how it ended:

python forking_process.py URL HTTP_URL TRANSPORT (Model | AsyncModel) (os | multiprocessing)

The child calls and closes the client of its parent, opens clients of its own, drops everything, and ends: by
sys.exit after os.fork, as multiprocessing does it otherwise. It exits with 7.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from clients import AsyncModel, ClientError, Model

ONE = np.ones((1, 1), np.float32)
URL, HTTP_URL, TRANSPORT, KIND, WAY = sys.argv[1:]
OPTIONS: dict[str, Any] = {"url": HTTP_URL if TRANSPORT == "http" else URL, "transport": TRANSPORT}
opened: list[Any] = []


async def own(options: dict[str, Any]) -> float:
    async with AsyncModel("picky", **options) as model:
        return float((await model.predict(9 * ONE)).item())


def own_blocking(options: dict[str, Any]) -> float:
    with Model("picky", **options) as model:
        return float(model.predict(9 * ONE).item())


def inherited() -> Any:
    model = opened[0]
    return model.predict(4 * ONE) if KIND == "Model" else asyncio.run(model.predict(4 * ONE))


def close() -> Any:
    return opened[0].close() if KIND == "Model" else asyncio.run(opened[0].close())


def child() -> None:
    attempts: dict[str, Callable[[], Any]] = {
        "inherited": inherited,
        "close": close,
        "own Model": lambda: own_blocking(OPTIONS),
        "own AsyncModel": lambda: asyncio.run(own(OPTIONS)),
        "own AsyncModel over HTTP": lambda: asyncio.run(own({"url": HTTP_URL, "transport": "http"})),
        "own Model over HTTP": lambda: own_blocking({"url": HTTP_URL, "transport": "http"}),
    }
    for name, attempt in attempts.items():
        try:
            print(f"{name}: {attempt()}", flush=True)
        except ClientError as error:
            print(f"{name}: {error}", flush=True)
    opened.clear()
    gc.collect()


def child_of_multiprocessing() -> None:
    child()
    sys.exit(7)


def fork() -> int:
    """The child's exit code."""
    if WAY == "os":
        pid = os.fork()
        if not pid:
            child()
            sys.exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child_of_multiprocessing)
    process.start()
    process.join()
    return process.exitcode or 0


def blocking() -> None:
    with Model("picky", **OPTIONS) as model:
        opened.append(model)
        model.predict(4 * ONE)
        code = fork()
        print(f"parent: {model.predict(4 * ONE).item()}, child: {code}", flush=True)


def asynchronous() -> None:
    runner = asyncio.Runner()
    model = AsyncModel("picky", **OPTIONS)
    opened.append(runner.run(model.__aenter__()))
    runner.run(model.predict(4 * ONE))
    code = fork()
    if WAY == "os":
        # Both have the same loop: a child that ends by itself closes it, and its parent's with it.
        print(f"parent: 2.0, child: {code}", flush=True)
        os._exit(0)
    print(f"parent: {runner.run(model.predict(4 * ONE)).item()}, child: {code}", flush=True)
    runner.run(model.close())
    runner.close()


if __name__ == "__main__":
    {"Model": blocking, "AsyncModel": asynchronous}[KIND]()
