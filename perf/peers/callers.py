"""Callers in a closed loop against one server, each with its own row, every reply checked; prints what they saw as JSON.

`python -m perf.peers.callers mosec 127.0.0.1:8000 rows.npz --seconds 6`; perf/peers/__main__.py starts it on a core of
its own.
"""

import argparse
import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import AsyncModel
from perf.peers.raw_http import Connection, post

Call = Callable[[], Awaitable[NDArray[np.float32]]]

TOLERANCE = 1e-3
"""Of the largest score: batches of other sizes add up in another order."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one closed loop saw. Latencies are of single calls; `cpu_s` is the callers' own processor time."""

    callers: int
    calls: int
    wrong: int
    wall_s: float
    cpu_s: float
    mean_ms: float
    p50_ms: float
    p99_ms: float


async def loop(calls: list[Call], expected: NDArray[np.float32], seconds: float, warm_up_s: float) -> Seen:
    """Let every caller call again as soon as it is answered; what falls into the warm-up is not counted."""
    scale = float(np.abs(expected).max())
    started = time.perf_counter() + warm_up_s
    end, wrong = started + seconds, 0
    latencies: list[float] = []

    async def caller(call: Call, right: NDArray[np.float32]) -> None:
        nonlocal wrong
        sent = time.perf_counter()
        while sent < end:
            answer = await call()
            now = time.perf_counter()
            if started <= now < end:
                latencies.append(now - sent)
            # All values, not a sample: a reply of another caller's row must be seen.
            wrong += not float(np.abs(answer - right).max()) <= TOLERANCE * scale
            sent = now

    async def processor_time() -> float:
        await asyncio.sleep(max(0.0, started - time.perf_counter()))
        return time.process_time()

    before, *_ = await asyncio.gather(processor_time(), *map(caller, calls, expected))
    times = np.array(latencies) * 1e3
    return Seen(
        callers=len(calls),
        calls=len(times),
        wrong=wrong,
        wall_s=seconds,
        cpu_s=time.process_time() - before,
        mean_ms=float(times.mean()),
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
    )


async def run(kind: str, url: str, rows: NDArray[np.float32], stack: AsyncExitStack) -> list[Call]:
    """One call for each row, to the server at `url`."""
    if kind in ("one_request", "coalesced"):
        model = await stack.enter_async_context(AsyncModel("ranker", url=url, coalesce=kind == "coalesced"))
        return [_triton(model, row) for row in rows]
    host, _, port = url.rpartition(":")
    calls = []
    for row in rows:
        connection = await Connection.open(host, int(port))
        stack.callback(connection.close)
        calls.append({"mosec": _mosec, "litserve": _litserve}[kind](connection, url, row))
    return calls


def _triton(model: AsyncModel, row: NDArray[np.float32]) -> Call:
    one = row[None]

    async def call() -> NDArray[np.float32]:
        scores: NDArray[np.float32] = await model.predict(one)
        return scores[0]

    return call


def _mosec(connection: Connection, url: str, row: NDArray[np.float32]) -> Call:
    request = post("/inference", url, "application/octet-stream", row.tobytes())

    async def call() -> NDArray[np.float32]:
        return np.frombuffer(await connection.ask(request), dtype=np.float32)

    return call


def _litserve(connection: Connection, url: str, row: NDArray[np.float32]) -> Call:
    body = json.dumps({"row": base64.b64encode(row.tobytes()).decode()}).encode()
    request = post("/predict", url, "application/json", body)

    async def call() -> NDArray[np.float32]:
        return np.array(json.loads(await connection.ask(request))["score"], dtype=np.float32)

    return call


def main(argv: list[str] | None = None) -> int:
    """Print one JSON object; exit code 1 when a call failed."""
    parser = argparse.ArgumentParser(prog="python -m perf.peers.callers", description=__doc__)
    parser.add_argument("kind", choices=("one_request", "coalesced", "mosec", "litserve"))
    parser.add_argument("url", help="host:port")
    parser.add_argument("rows", type=Path, help="an .npz file with `rows`, one for each caller, and `expected`")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--core", type=int, help="run on this core alone")
    arguments = parser.parse_args(argv)
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    with np.load(arguments.rows) as file:
        rows, expected = file["rows"], file["expected"]

    async def measured() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            calls = await run(arguments.kind, arguments.url, rows, stack)
            return asdict(await loop(calls, expected, arguments.seconds, arguments.warm_up))

    print(json.dumps(asyncio.run(measured())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
