"""A cluster that is watched while requests come: its replicas second by second, and the latency of each request."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from clients import AsyncModel
from clients.errors import ClientError, RejectedError
from perf.studies.cluster.program import RunningCluster
from triton_batching.terminal import terminal

MODEL = "simulated_accelerator"
# Time between two looks at the cluster.
LOOK_S = 0.5


class Watch:
    """Asks the cluster for its replicas: `seen` has seconds since `start`, those wanted, and those ready."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster, self.start = cluster, time.monotonic()
        self.seen: list[tuple[float, int, int]] = []
        self._began: dict[str, float] = {}
        self.start_s: list[float] = []

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            status = await asyncio.to_thread(self._cluster.status)
            at = time.monotonic() - self.start
            (deployment,) = status.deployments
            self.seen.append((at, deployment.desired, deployment.ready))
            for replica in status.replicas:
                if replica.phase == "starting":
                    self._began.setdefault(replica.name, at - replica.age_s)
                elif replica.phase == "ready" and replica.name in self._began:
                    self.start_s.append(at - self._began.pop(replica.name))
            await asyncio.sleep(LOOK_S)

    def each_second(self, seconds: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Replicas wanted and ready at the end of each second."""
        times = [at for at, _, _ in self.seen]
        places = np.clip(np.searchsorted(times, np.arange(1, seconds + 1), side="right") - 1, 0, None)
        return tuple(self.seen[at][1] for at in places), tuple(self.seen[at][2] for at in places)


async def offered(url: str, due_s: Sequence[float], watch: Watch) -> tuple[list[float], int]:
    """The latency of each request in seconds from when it was due, infinite without an answer; and those refused."""
    rows = np.zeros((1, 1, 32, 100), dtype=np.float32)
    latencies = [float("inf")] * len(due_s)
    refused = 0

    async with AsyncModel(MODEL, url=url, transport="grpc", timeout_s=10.0, max_in_flight=4096) as model:

        async def request(number: int, due: float) -> None:
            nonlocal refused
            try:
                await model.predict(rows)
                latencies[number] = time.monotonic() - watch.start - due
            except RejectedError:
                refused += 1
            except ClientError as error:
                terminal().print(f"{due:.1f} s: {error}", markup=False)

        watch.start = time.monotonic()
        watching = asyncio.create_task(watch.run())
        async with asyncio.TaskGroup() as group:
            for number, due in enumerate(due_s):
                if (wait_s := due - (time.monotonic() - watch.start)) > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(request(number, due))
        watching.cancel()
    return latencies, refused
