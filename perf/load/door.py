"""Whether several servers answer at one address: the door of a cluster, or another proxy.

Each reading of the counters is then of another server, and their difference means nothing.
"""

import contextlib
import itertools

from perf.load.address import HERE
from serve.cluster import place
from serve.cluster.control import Look, ask
from serve.cluster.status import ReplicaStatus
from serve.management.statistics import Counters
from triton_batching.terminal import Failure, Mistake

# Readings one after the other. If two servers with different counters answer at random, this many rise all along by
# chance in 0.3 % of the cases.
READINGS = 12
# An answer is sent before it is counted, and the counters are read a little after the ends of the window.
LEAST_COUNTED = 0.5


def replicas(url: str, model: str | None = None) -> list[ReplicaStatus]:
    """The replicas (of `model`) behind the door at `url` (host:port); empty unless this user's cluster runs here."""
    host, _, port = url.rpartition(":")
    with contextlib.suppress(Mistake):
        for each in place.running():
            with contextlib.suppress(Failure, Mistake):
                status = ask(each, Look()).status
                if status and host in (*HERE, status.host) and port == str(status.grpc_port):
                    return [
                        replica
                        for replica in status.replicas
                        if replica.phase != "starting" and (model is None or model in replica.models)
                    ]
    return []


def several(url: str, model: str) -> str:
    """Why the counters of `model` at `url` are not those of one server, in words; "" if nothing shows that."""
    behind = replicas(url, model)
    if len(behind) > 1:
        addresses = " or ".join(f"{replica.host}:{replica.grpc_port}" for replica in behind)
        return (
            f"{url} is the door of {len(behind)} replicas, and each reading is of another one. For counters load one: "
            f"--url {addresses}"
        )
    readings = [Counters.read(url, model) for _ in range(READINGS)]
    return _fell(url) if any((later - earlier).fell for earlier, later in itertools.pairwise(readings)) else ""


def misfit(url: str, model: str, counted: Counters, answered: float) -> str:
    """Why `counted` is not what one server counted of `answered` requests, in words; "" if nothing shows that."""
    if counted.fell:
        return _fell(url)
    if counted.requests < LEAST_COUNTED * answered:
        return (
            f"{url}: {answered:,.0f} requests were answered and {counted.requests:,} counted, so other servers answer "
            "there too"
        )
    return several(url, model)


def _fell(url: str) -> str:
    return f"{url}: they fell between two readings, so several servers answer there, or the server has restarted"
