"""A lean client in a process of its own: tritonclient's asyncio gRPC client, and nothing of `perf.load`.

`python -m perf.studies.prediction.lean_client HOST:PORT MODEL --load poisson:200 --seconds 5` prints one JSON object.
It measures what the simulation predicted, so it shares no code with what predicts or with the other load generators.
Latency counts from when a request was due.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tritonclient.grpc.aio as triton

from triton_batching.terminal import program_parser

# Time at the end for answers that are still under way.
DRAIN_S = 30.0


class LeanClient:
    """Sends one prepared request again and again; `sent` holds due time and latency of each answer in seconds."""

    def __init__(self, client: triton.InferenceServerClient, model: str, inputs: Sequence[triton.InferInput]) -> None:
        self._client, self._model, self._inputs = client, model, inputs
        self.sent: list[tuple[float, float]] = []
        self.failed = 0

    async def ask(self, due: float) -> None:
        """Send one request that was due at a time of the event loop's clock."""
        try:
            await self._client.infer(self._model, self._inputs)
        except triton.InferenceServerException:
            self.failed += 1
        else:
            self.sent.append((due, time.monotonic() - due))

    async def closed(self, clients: int, until: float) -> None:
        """Clients that each send again after their answer, until a time of the clock."""

        async def one() -> None:
            while (now := time.monotonic()) < until:
                await self.ask(now)

        await asyncio.gather(*(one() for _ in range(clients)))

    async def open(self, rate_per_s: float, until: float, rng: np.random.Generator) -> None:
        """Poisson arrivals until a time of the clock."""
        tasks, begin = [], time.monotonic()
        for after in arrivals_s(rate_per_s, until - begin, rng):
            await asyncio.sleep(max(0.0, begin + after - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(begin + after)))
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S)


def arrivals_s(rate_per_s: float, seconds: float, rng: np.random.Generator) -> Iterator[float]:
    """The times of Poisson arrivals within `seconds`, counted from the start."""
    due = 0.0
    while (due := due + float(rng.exponential(1 / rate_per_s))) < seconds:
        yield due


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Send the load; return rates, latencies in milliseconds and counts of the window after the warm-up."""
    client = triton.InferenceServerClient(arguments.url, channel_args=[("grpc.enable_http_proxy", 0)])
    try:
        inputs = await _inputs(client, arguments.model, arguments.rows, arguments.seed)
        lean, begin = LeanClient(client, arguments.model, inputs), time.monotonic() + arguments.warm_up
        end = begin + arguments.seconds
        pattern, _, value = arguments.load.partition(":")
        if pattern == "closed":
            await lean.closed(int(value), end)
        else:
            await lean.open(float(value), end, np.random.default_rng(arguments.seed))
    finally:
        await client.close()
    latencies = [1e3 * latency for due, latency in lean.sent if begin <= due < end]
    answered = sum(begin <= due + latency < end for due, latency in lean.sent)
    return {
        "seconds": arguments.seconds,
        "requests": len(latencies),
        "failed": lean.failed,
        "answered_per_s": answered / arguments.seconds,
        "mean_ms": float(np.mean(latencies)) if latencies else None,
        "percentiles_ms": {
            str(p): float(np.percentile(latencies, p, method="inverted_cdf")) for p in (50, 90, 95, 99) if latencies
        },
    }


async def _inputs(client: triton.InferenceServerClient, model: str, rows: int, seed: int) -> list[triton.InferInput]:
    metadata = await client.get_model_metadata(model)
    rng, inputs = np.random.default_rng(seed), []
    for tensor in metadata.inputs:
        values = rng.normal(size=(rows, *tensor.shape[1:])).astype(np.float32)
        inputs.append(triton.InferInput(tensor.name, list(values.shape), "FP32"))
        inputs[-1].set_data_from_numpy(values)
    return inputs


def main(argv: Sequence[str] | None = None) -> int:
    """Send a load and print what came of it."""
    parser = program_parser(
        "python -m perf.studies.prediction.lean_client", __doc__, example="localhost:8001 ranker --load poisson:200"
    )
    parser.add_argument("url", help="host:port of the gRPC endpoint")
    parser.add_argument("model", help="its inputs are FP32")
    parser.add_argument("--load", required=True, help="closed:16 (clients) or poisson:200 (requests per second)")
    parser.add_argument("--rows", type=int, default=1, help="rows per request (default 1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the window (default 5)")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before the window (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and inputs")
    print(json.dumps(asyncio.run(run(parser.parse_args(argv)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
