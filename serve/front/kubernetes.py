"""Print the front door of docker/kubernetes: Envoy's configuration, with the replicas from the cluster's DNS.

docker/kubernetes/base/envoy.yaml is what it prints without options.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve.front.door import FrontDoor, Pool
from triton_batching.options import number, whole_number
from triton_batching.terminal import Mistake, guarded, program_parser

PROGRAM = "python -m serve.front.kubernetes"
MODEL = "text_recognition"
# The headless Service of the replicas: the cluster's DNS answers its name with the address of every ready pod.
REPLICAS, PORTS = "triton-replicas", {"http": 8000, "grpc": 8001}
STATS_PORT, STATS_PATHS = 9901, ("/ready", "/stats/prometheus")
FOLDER = Path("/tmp")
# A connection is told to end after this time. When a pod of the door goes, no new ones come, and the old ones have
# ended before its wait of preStop is over.
CONNECTION_S = 20
MIB = 1 << 20
GIB = 1 << 30
UNITS = {"": 1, "M": 10**6, "G": 10**9, "Mi": MIB, "Gi": GIB}
POD = Path(__file__).parents[2] / "docker" / "kubernetes" / "base" / "door.yaml"


def main(argv: list[str] | None = None) -> int:
    """Exit code 2 for a mistake in the call."""
    arguments = _parser().parse_args(argv)

    def action() -> None:
        door = _door(arguments)
        _check_pod(door)
        sys.stdout.write(text(door))

    return guarded(action)


def text(door: FrontDoor) -> str:
    """The configuration as YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are, and what occurs twice twice."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, represent)
    head = f"# Written by `{PROGRAM}`: change the options or the program, not this file.\n# yamllint disable\n"
    return head + yaml.dump(configuration(door), Dumper=Dumper, sort_keys=False, width=110)


def configuration(door: FrontDoor) -> dict[str, Any]:
    """Envoy's configuration in one piece: the door's own, without files beside it."""
    from serve.front.envoy_config import bootstrap

    config = bootstrap(door, FOLDER)
    resources = config["static_resources"]
    resources["clusters"] = [_from_dns(cluster) for cluster in resources["clusters"]]
    for (chain,) in _values(resources["listeners"], "filter_chains"):
        manager = chain["filters"][0]["typed_config"]
        manager["common_http_protocol_options"]["max_connection_duration"] = f"{CONNECTION_S}s"
        manager["http1_safe_max_connection_duration"] = True
    for codes in _values(resources["listeners"], "source_codes"):
        for name, source in codes.items():
            codes[name] = {"inline_string": Path(source["filename"]).read_text()}
    resources["listeners"].append(_stats())
    resources["clusters"].append(_admin(config["admin"]["address"]))
    return config


def _from_dns(cluster: dict[str, Any]) -> dict[str, Any]:
    """The cluster with every address that the Service's name has, in place of a file of endpoints."""
    del cluster["eds_cluster_config"]
    port = PORTS[cluster["name"].rpartition(".")[2]]
    return cluster | {
        "type": "STRICT_DNS",
        "dns_refresh_rate": "2s",
        "dns_lookup_family": "V4_PREFERRED",
        "load_assignment": _assignment(cluster["name"], _socket(REPLICAS, port)),
    }


def _values(tree: Any, key: str) -> Iterator[Any]:
    """What `key` names anywhere in the tree."""
    if isinstance(tree, dict):
        yield from (tree[key] for _ in range(key in tree))
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from _values(branch, key)


def _stats() -> dict[str, Any]:
    """A listener for probes and Prometheus, which passes on these two paths of the admin socket and no other."""
    extension = "type.googleapis.com/envoy.extensions.filters"
    router = {"name": "router", "typed_config": {"@type": f"{extension}.http.router.v3.Router"}}
    routes = [{"match": {"path": path}, "route": {"cluster": "admin"}} for path in STATS_PATHS]
    manager = {
        "@type": f"{extension}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "stats",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "stats", "domains": ["*"], "routes": routes}]},
    }
    chain = {"filters": [{"name": "stats", "typed_config": manager}]}
    return {
        "name": "stats",
        "address": _socket("0.0.0.0", STATS_PORT),
        # Clients that take all connections must not make a liveness probe fail.
        "ignore_global_conn_limit": True,
        "filter_chains": [chain],
    }


def _admin(address: dict[str, Any]) -> dict[str, Any]:
    socket = {"pipe": {"path": address["pipe"]["path"]}}
    return {"name": "admin", "type": "STATIC", "load_assignment": _assignment("admin", socket)}


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _assignment(cluster: str, address: dict[str, Any]) -> dict[str, Any]:
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def _door(arguments: argparse.Namespace) -> FrontDoor:
    pool = Pool(
        name="replicas",
        models=tuple(arguments.model or [MODEL]),
        slowest_s=arguments.slowest_s,
        is_retried=not arguments.once,
        most_in_flight=arguments.most_in_flight,
    )
    return FrontDoor(
        host="0.0.0.0",
        http_port=PORTS["http"],
        grpc_port=PORTS["grpc"],
        pools=(pool,),
        is_open=True,  # to the pods that the NetworkPolicy names
        largest_request_bytes=arguments.largest_mib * MIB,
        retry_buffer_bytes=(arguments.largest_mib + 1) * MIB,
    )


def _check_pod(door: FrontDoor) -> None:
    """Raise a `Mistake` if the pod of the door has too little time or memory for it."""
    import yaml

    from serve.front.envoy_config import DRAIN_S, memory_bytes
    from serve.front.envoy_routes import longest_s

    pod = yaml.safe_load(POD.read_text())["spec"]["template"]["spec"]
    [container] = pod["containers"]
    wait_s, grace_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1]), pod["terminationGracePeriodSeconds"]
    if (needed_s := math.ceil(CONNECTION_S + DRAIN_S + longest_s(door))) > wait_s:
        raise Mistake(
            f"a request may take {longest_s(door):g} s with all its tries, and {POD} lets a front door that ends work "
            f"for {wait_s} s. Set preStop to {needed_s} there and terminationGracePeriodSeconds to "
            f"{needed_s + grace_s - wait_s}, or lower --slowest-s."
        )
    memory = container["resources"]["limits"]["memory"]
    unit = memory.lstrip("0123456789.")
    if memory_bytes(door) > float(memory.removesuffix(unit)) * UNITS[unit]:
        raise Mistake(
            f"requests may take {memory_bytes(door) // MIB} MiB, and {POD} gives a front door {memory}. Set "
            f"limits.memory to {math.ceil(memory_bytes(door) / GIB)}Gi there, or lower --largest-mib."
        )


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(PROGRAM, __doc__, example="--model mine --slowest-s 0.5 > envoy.yaml")
    parser.add_argument("--model", action="append", help=f"a model that may be called; repeatable (default: {MODEL})")
    parser.add_argument(
        "--slowest-s",
        type=number(above=0, most=3600),
        default=3.0,
        metavar="SECONDS",
        help="the longest time of an honest request; after it another replica is asked (default: 3)",
    )
    parser.add_argument("--once", action="store_true", help="no request may run twice (sequences, side effects)")
    parser.add_argument(
        "--most-in-flight",
        type=whole_number(1, 100_000),
        default=64,
        metavar="N",
        help="requests that the door lets in at a time, of each protocol (default: 64)",
    )
    parser.add_argument(
        "--largest-mib",
        type=whole_number(1, 1024),
        default=1,
        metavar="MIB",
        help="the largest request (default: 1)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
