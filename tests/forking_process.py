"""A process that opens a client, forks, and says how its child ended:

python forking_process.py URL TRANSPORT (Model | AsyncModel) (os | multiprocessing) (call | collect | new)

The child calls the client of its parent, drops it, or opens one of its own, and then ends as every program does.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
from typing import Any

import numpy as np

from clients import AsyncModel, ClosedError, Model

ONE = np.ones((1, 1), np.float32)
URL, TRANSPORT, KIND, WAY, DOES = sys.argv[1:]
OPTIONS: dict[str, Any] = {"url": URL, "transport": TRANSPORT}
held: list[Any] = []


async def own() -> float:
    async with AsyncModel("picky", **OPTIONS) as model:
        return float((await model.predict(9 * ONE)).item())


def child() -> None:
    if DOES == "call":
        try:
            answer = held[0].predict(ONE)
            if KIND == "AsyncModel":
                answer.send(None)
        except ClosedError as error:
            print(error, flush=True)
        held[0].close()
    elif DOES == "collect":
        held.clear()
        gc.collect()
        print("collected", flush=True)
    elif KIND == "Model":
        with Model("picky", **OPTIONS) as model:
            print(model.predict(9 * ONE).item(), flush=True)
    else:
        print(asyncio.run(own()), flush=True)


def fork() -> int:
    """The child's exit code."""
    sys.stdout.flush()
    if WAY == "os":
        pid = os.fork()
        if not pid:
            child()
            sys.exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return 7 if process.exitcode == 0 else process.exitcode or 1


async def asynchronous() -> int:
    async with AsyncModel("picky", **OPTIONS) as model:
        held.append(model)
        await model.predict(4 * ONE)
        code = fork()
        if (await model.predict(4 * ONE)).item() == 2:
            print("parent goes on", flush=True)
        return code


def blocking() -> int:
    with Model("picky", **OPTIONS) as model:
        held.append(model)
        model.predict(4 * ONE)
        code = fork()
        if model.predict(4 * ONE).item() == 2:
            print("parent goes on", flush=True)
        return code


if __name__ == "__main__":
    sys.exit(blocking() if KIND == "Model" else asyncio.run(asynchronous()))
