"""Opens a front door: checks it, starts its proxy and keeps it alive.

with open_door(door) as proxy:
    proxy.route({"ranker": endpoints})
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from serve.front import envoy, haproxy
from serve.front.checks import Kind, check, find
from serve.front.door import FrontDoor
from serve.front.proxy import Proxy

# One worker serves several thousand requests in a second, and the replicas need the other cores.
CORES_OF_A_WORKER, MOST_WORKERS = 8, 4


@contextlib.contextmanager
def open_door(
    door: FrontDoor,
    *,
    kind: Kind = "envoy",
    log: Path | None = None,
    workers: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Proxy]:
    """Open the door, yield its proxy when it listens, and close it at the end; requests in flight are answered first.

    No pool has an endpoint until `route` names some. log: the proxy's log, else it is removed at the end. workers: the
    proxy's threads. report: gets a sentence when the proxy is started again. Raises `Mistake` and `ProxyError`.
    """
    check(door, kind)
    binary = find(kind)
    threads = workers or _workers()
    open_proxy: Callable[..., AbstractContextManager[Proxy]] = envoy.run if kind == "envoy" else haproxy.run
    with open_proxy(door, binary, workers=threads, log=log, report=report) as proxy:
        yield proxy


def _workers() -> int:
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // CORES_OF_A_WORKER))
