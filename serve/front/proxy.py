"""A running proxy, whichever it is: what the cluster tells it, and what it reads from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from serve.front.door import Endpoint


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the proxy counts for one replica since the proxy started: requests in flight, all, and failed ones."""

    in_flight: int
    requests: int
    failures: int


class Proxy(Protocol):
    """A proxy that listens on the door's ports; it is started again when its process dies."""

    def route(self, endpoints: Mapping[str, Sequence[Endpoint]]) -> None:
        """Send the requests of each pool (by name) to these endpoints from now on; returns when it does."""

    def traffic(self) -> Mapping[str, Traffic]:
        """The traffic of each replica (by name), HTTP and gRPC together; empty while the proxy is away."""

    def metrics(self) -> str:
        """The proxy's own metrics in the Prometheus format; "" while it is away."""

    @property
    def restarts(self) -> int:
        """How often its process was started again."""
