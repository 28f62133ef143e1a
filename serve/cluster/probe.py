"""Asks one replica again and again whether it is ready, and while it drains how many requests wait in it."""

import threading
import time

from serve.cluster.engine import ReplicaState
from serve.management import api
from serve.management.metrics import Metrics, MetricsError

POLL_S, DRAIN_POLL_S = 1.0, 0.1


def address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Probe:
    """A thread that asks until `end` is called; a replica that hangs holds up nothing else."""

    def __init__(self, state: ReplicaState) -> None:
        self._http = address(state.host, state.http_port)
        self._metrics = address(state.host, state.metrics_port)
        self._ready_at = time.monotonic()
        self._drains, self._ended = threading.Event(), threading.Event()
        self._is_empty = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"probe of {self._http}")
        self._thread.start()

    def unready_s(self) -> float:
        """For how long the replica has not said that it is ready."""
        return time.monotonic() - self._ready_at

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
            if api.is_ready(self._http):
                self._ready_at = time.monotonic()
            self._drains.wait(POLL_S)

    def _look_at_queues(self) -> None:
        try:
            waiting = sum(Metrics.read(self._metrics, timeout_s=1.0).pending.values())
        except MetricsError:
            waiting = 0.0  # the door's count of requests in flight decides
        self._is_empty = not waiting
