"""The metrics of a cluster's replicas as Prometheus' file of targets (file_sd), for `python -m serve.observe`."""

import json
from collections.abc import Iterable

from serve.cluster.engine import Phase
from serve.cluster.occupant import Occupant
from serve.cluster.probe import address


def text(occupants: Iterable[Occupant]) -> str:
    """The content of the file: a group for each replica that serves."""
    groups = [
        {
            "targets": [address(occupant.state.host, occupant.state.metrics_port)],
            "labels": {"deployment": occupant.replica.deployment, "replica": occupant.name},
        }
        for occupant in occupants
        if occupant.state.phase is Phase.READY and not occupant.stopping
    ]
    return json.dumps(groups, indent=1) + "\n"
