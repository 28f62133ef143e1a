"""Callers in a closed loop against one server, each with its own row; every reply is checked. Prints JSON.

`echo 2.0 | python -m perf.studies.peers.callers mosec 127.0.0.1:8000 rows.npz` is one turn of 2 s.
`perf.studies.peers` starts this program on a core of its own.
"""

import asyncio
import base64
import functools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients import AsyncModel
from clients._coalescer import Coalescer, Outputs
from clients._contract import Inputs, Metadata, Tensor
from clients._options import DEFAULTS, CallOptions
from perf.stats.percentile import percentile
from perf.studies.peers.raw_http import Connection, post
from triton_batching.terminal import program_parser

Rows = NDArray[np.float32]
Call = Callable[[], Awaitable[Rows]]

# Share of the largest score: other batch sizes sum in another order.
TOLERANCE = 1e-3


class MergedCalls:
    """One-row calls of one process, sent as requests of up to `most_rows` rows to the mosec server at `url`."""

    def __init__(self, url: str, row: tuple[int, ...], answer: tuple[int, ...], most_rows: int) -> None:
        self._url, self._answer = url, answer
        self._idle: list[Connection] = []
        self._metadata = _metadata(row, answer, most_rows)
        self._coalescer = Coalescer(self._metadata, self._send)

    async def call(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """The answer to one row, which has no batch axis."""
        outputs = await self._coalescer.infer(self._metadata.check([row[None]]), DEFAULTS)
        answer: NDArray[np.float32] = outputs["answer"][0]
        return answer

    def close(self) -> None:
        """Close the connections; calls that have no answer fail."""
        self._coalescer.close()
        for connection in self._idle:
            connection.close()

    async def _send(self, inputs: Inputs, options: CallOptions) -> Outputs:
        host, _, port = self._url.rpartition(":")
        connection = self._idle.pop() if self._idle else await Connection.open(host, int(port))
        request = post("/inference", self._url, "application/octet-stream", inputs.arrays["row"].tobytes())
        values = np.frombuffer(await connection.ask(request), dtype=np.float32)
        self._idle.append(connection)
        return {"answer": values.reshape(-1, *self._answer)}


def _metadata(row: tuple[int, ...], answer: tuple[int, ...], most_rows: int) -> Metadata:
    """What the merging asks of a model: one worker, and at most `most_rows` rows in a request."""

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(name=name, datatype="FP32", dtype=np.dtype(np.float32), shape=(-1, *shape))

    return Metadata(
        name="ranker",
        inputs=(tensor("row", row),),
        outputs=(tensor("answer", answer),),
        max_batch_size=most_rows,
        instances=1,
    )


@dataclass(frozen=True, kw_only=True)
class CallerCounts:
    """The counts of one closed loop, from one answer to another `wall_s` later; latencies are of single calls.

    `cpu_s` is the callers' own CPU time in the turn, warm-up included.
    """

    callers: int
    calls: int
    wrong: int
    wall_s: float
    cpu_s: float
    p50_ms: float
    p99_ms: float


async def loop(calls: list[Call], expected: Rows, seconds: float, warm_up_s: float) -> CallerCounts:
    """Let every caller call again after each answer; calls in the warm-up are not counted."""
    scale, cpu_s = float(np.abs(expected).max()), time.process_time()
    start = time.perf_counter() + warm_up_s
    end = start + seconds
    answered: list[tuple[float, float]] = []
    replies: list[Rows] = []
    callers: list[int] = []

    async def caller(number: int, call: Call) -> None:
        sent = time.perf_counter()
        while sent < end:
            replies.append(await call())
            now = time.perf_counter()
            callers.append(number)
            answered.append((now, now - sent))
            sent = now

    await asyncio.gather(*map(caller, range(len(calls)), calls))
    # Checked after the turn, since in a closed loop the server waits while a caller checks.
    wrong = int((~(np.abs(np.array(replies) - expected[callers]).max(axis=1) <= TOLERANCE * scale)).sum())
    # Answers come in batches, so the window begins and ends with an answer.
    times = np.array([now for now, _ in answered])
    first = times[times < start].max(initial=start)
    inside = (times > first) & (times < end)
    latencies = np.array([latency for _, latency in answered])[inside] * 1e3
    if not inside.any():  # the server is still loading: no answers in the whole turn
        times, latencies, inside = np.array([end]), np.array([seconds * 1e3]), np.array([False])
    return CallerCounts(
        callers=len(calls),
        calls=int(inside.sum()),
        wrong=wrong,
        wall_s=float(times[inside].max(initial=first) - first) or seconds,
        cpu_s=time.process_time() - cpu_s,
        p50_ms=float(percentile(latencies, 50)),
        p99_ms=float(percentile(latencies, 99)),
    )


async def run(kind: str, url: str, rows: Rows, stack: AsyncExitStack) -> list[Call]:
    """One call for each row, to the server at `url`."""
    if kind == "mosec_merged":
        merging = MergedCalls(url, row=rows.shape[1:], answer=(2,), most_rows=len(rows))
        stack.callback(merging.close)
        return [functools.partial(merging.call, row) for row in rows]
    if kind in ("grpc", "coalesced"):
        model = await stack.enter_async_context(AsyncModel("ranker", url=url, coalesce=kind == "coalesced"))
        return [_triton(model, row) for row in rows]
    host, _, port = url.rpartition(":")
    calls = []
    for row in rows:
        connection = await Connection.open(host, int(port))
        stack.callback(connection.close)
        calls.append(_RAW[kind](connection, url, row))
    return calls


def _triton(model: AsyncModel, row: Rows) -> Call:
    request = row[None]

    async def call() -> Rows:
        scores: Rows = (await model.predict(request))[0]
        return scores

    return call


def _http(connection: Connection, url: str, row: Rows) -> Call:
    """KServe v2 with its binary tensor extension: the answer's tensor is the end of the body."""
    values = row.tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "features",
                    "shape": [1, *row.shape],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(values)},
                }
            ],
            "outputs": [{"name": "score", "parameters": {"binary_data": True}}],
        }
    ).encode()
    header = f"Inference-Header-Content-Length: {len(head)}"
    request = post("/v2/models/ranker/infer", url, "application/octet-stream", head + values, header)

    async def call() -> Rows:
        return np.frombuffer((await connection.ask(request))[-8:], dtype=np.float32)

    return call


def _mosec(connection: Connection, url: str, row: Rows) -> Call:
    request = post("/inference", url, "application/octet-stream", row.tobytes())

    async def call() -> Rows:
        return np.frombuffer(await connection.ask(request), dtype=np.float32)

    return call


def _litserve(connection: Connection, url: str, row: Rows) -> Call:
    body = json.dumps({"row": base64.b64encode(row.tobytes()).decode()}).encode()
    request = post("/predict", url, "application/json", body)

    async def call() -> Rows:
        return np.array(json.loads(await connection.ask(request))["score"], dtype=np.float32)

    return call


_RAW = {"http": _http, "mosec": _mosec, "litserve": _litserve}


async def serve(kind: str, url: str, rows: Rows, expected: Rows, warm_up_s: float) -> None:
    """For every line on standard input, a number of seconds, call for that time and print the counts."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        # A new connection each time, since servers close idle connections.
        async with AsyncExitStack() as stack:
            calls = await run(kind, url, rows, stack)
            counts = await loop(calls, expected, float(line), warm_up_s)
        print(json.dumps(asdict(counts)), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Print a JSON object for each line read; exit code 1 if a call failed."""
    parser = program_parser("python -m perf.studies.peers.callers", __doc__, example="mosec 127.0.0.1:8000 rows.npz")
    parser.add_argument("kind", choices=("coalesced", "grpc", "mosec_merged", *_RAW))
    parser.add_argument("url", help="host:port")
    parser.add_argument("rows", type=Path, help="an .npz file with `rows`, one for each caller, and `expected`")
    parser.add_argument("--warm-up", type=float, default=0.4, metavar="SECONDS", help="before each turn is counted")
    arguments = parser.parse_args(argv)
    with np.load(arguments.rows) as file:
        rows, expected = file["rows"], file["expected"]
    asyncio.run(serve(arguments.kind, arguments.url, rows, expected, arguments.warm_up))
    return 0


if __name__ == "__main__":
    sys.exit(main())
