"""The metrics of a cluster and its replicas as Prometheus' file of targets (file_sd)."""

import json
from collections.abc import Iterable

from serve.cluster.engine import Phase
from serve.cluster.occupant import Occupant
from serve.cluster.probe import address

# Addresses to listen on that are none to connect to.
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def text(occupants: Iterable[Occupant], host: str, port: int | None) -> str:
    """The content of the file: the cluster's own page on `port` (None if it has none), and each replica that serves."""
    own = [] if port is None else [{"targets": [address(ANYWHERE.get(host, host), port)]}]
    groups = [
        {
            "targets": [address(occupant.state.host, occupant.state.metrics_port)],
            "labels": {"deployment": occupant.replica.deployment, "replica": occupant.name},
        }
        for occupant in occupants
        if occupant.state.phase is Phase.READY and not occupant.stopping
    ]
    return json.dumps([*own, *groups], indent=1) + "\n"
