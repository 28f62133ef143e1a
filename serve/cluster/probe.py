"""Asks one replica again and again whether it is ready, and while it drains how many requests wait in it."""

import threading
import time

from serve.cluster.engine import ReplicaState
from serve.management import api
from serve.management.api import RefusedError, ServerError, TimedOutError
from serve.management.metrics import Metrics, MetricsError

POLL_S, DRAIN_POLL_S = 1.0, 0.1
TIMEOUT_S = 1.0
# A server that gets SIGTERM closes new HTTP connections at once. It says over gRPC that it is ready for 10 s more, and
# then fails what comes (NOT_FOUND). The engine says of one that was killed why it died, sooner than this.
MOST_REFUSED = 8


def address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Probe:
    """A thread that asks until `end` is called; a replica that hangs holds up nothing else."""

    def __init__(self, state: ReplicaState) -> None:
        self._http = address(state.host, state.http_port)
        self._metrics = address(state.host, state.metrics_port)
        self._ready_at, self._refused = time.monotonic(), 0
        self._drains, self._ended = threading.Event(), threading.Event()
        self._is_empty = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"probe of {self._http}")
        self._thread.start()

    def unready_s(self) -> float:
        """For how long the replica has not said that it is ready."""
        return time.monotonic() - self._ready_at

    def is_closed(self) -> bool:
        """Whether the replica takes no new HTTP connections any more."""
        return self._refused >= MOST_REFUSED

    def drain(self) -> None:
        """Watch the queues from now on."""
        self._drains.set()

    def is_empty(self) -> bool:
        """Whether no request waited in the replica's queues when it was last asked; call `drain` before."""
        return self._is_empty

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._drains.is_set():
                self._look_at_queues()
                self._ended.wait(DRAIN_POLL_S)
                continue
            self._look_at_readiness()
            self._drains.wait(DRAIN_POLL_S if self._refused else POLL_S)

    def _look_at_readiness(self) -> None:
        try:
            api.text(f"{api.base(self._http)}/v2/health/ready", timeout_s=TIMEOUT_S)
        except (TimedOutError, RefusedError):
            self._refused = 0
        except ServerError:
            self._refused += 1
        else:
            self._ready_at, self._refused = time.monotonic(), 0

    def _look_at_queues(self) -> None:
        try:
            waiting = sum(Metrics.read(self._metrics, timeout_s=TIMEOUT_S).pending.values())
        except MetricsError:
            waiting = 0.0  # the door's count of requests in flight decides
        self._is_empty = not waiting
