"""Envoy's clusters: the replicas of each pool, who of them is healthy, and how many requests they get at a time."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serve.front.door import Endpoint, FrontDoor, Pool
from serve.front.envoy_routes import cluster, seconds

PROTOCOLS = ("http", "grpc")
CHECK_EVERY_S = 0.5
EJECTED_S = 2.0
# Of the requests in flight. A replica that dies gives all of its own back at once: half of them, of two replicas.
RETRY_PERCENT = 60.0
LEAST_RETRIES = 64
OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def clusters(door: FrontDoor, folder: Path) -> list[dict[str, Any]]:
    """Two clusters of each pool, because its HTTP and its gRPC ports differ; their endpoints are in files."""
    return [_cluster(pool, protocol, folder) for pool in door.pools for protocol in PROTOCOLS]


def endpoints_file(folder: Path, pool: Pool, protocol: str) -> Path:
    """The file with the endpoints of a cluster."""
    return folder / f"{cluster(pool, protocol)}.json"


def endpoints_text(pool: Pool, protocol: str, endpoints: Sequence[Endpoint]) -> str:
    """The content of that file."""
    assignment = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster(pool, protocol),
        "endpoints": [{"lb_endpoints": [_endpoint(endpoint, protocol) for endpoint in endpoints]}],
    }
    return json.dumps({"resources": [assignment]})


def address(endpoint: Endpoint, protocol: str) -> tuple[str, int]:
    """The IP address and the port of a replica; Envoy takes no names here."""
    port = endpoint.http_port if protocol == "http" else endpoint.grpc_port
    found = socket.getaddrinfo(endpoint.host, port, type=socket.SOCK_STREAM)[0][4]
    return str(found[0]), port


def socket_address(host: str, port: int) -> dict[str, Any]:
    """An address as Envoy writes it."""
    return {"socket_address": {"address": host, "port_value": port}}


def _endpoint(endpoint: Endpoint, protocol: str) -> dict[str, Any]:
    return {
        "endpoint": {"address": socket_address(*address(endpoint, protocol)), "hostname": endpoint.replica},
        "health_status": "DRAINING" if endpoint.is_draining else "HEALTHY",
        "load_balancing_weight": endpoint.weight,
    }


def _cluster(pool: Pool, protocol: str, folder: Path) -> dict[str, Any]:
    version = "http_protocol_options" if protocol == "http" else "http2_protocol_options"
    file = {"path": str(endpoints_file(folder, pool, protocol))}
    return {
        "name": cluster(pool, protocol),
        # Envoy takes a dot in the name of a metric for its end.
        "alt_stat_name": f"{pool.name.replace('.', '_')}/{protocol}",
        "track_cluster_stats": {"per_endpoint_stats": True},
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"path_config_source": file, "resource_api_version": "V3"}},
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        # It counts only while weights differ, as for a canary, and then each endpoint gets its share. With more than 0,
        # the weight is divided by the requests in flight: a lower weight gets more, and a slower replica less.
        "least_request_lb_config": {"active_request_bias": {"default_value": 0.0, "runtime_key": "door.bias"}},
        "common_lb_config": {
            # No panic: requests to a draining or dead replica are worse than a refusal.
            "healthy_panic_threshold": {"value": 0.0},
            # By default Envoy collects changes of health for a second.
            "update_merge_window": "0s",
            "ignore_new_hosts_until_first_hc": True,
        },
        "ignore_health_on_host_removal": True,
        "typed_extension_protocol_options": {
            OPTIONS: {"@type": f"type.googleapis.com/{OPTIONS}", "explicit_http_config": {version: {}}}
        },
        "health_checks": [_health_check(protocol)],
        "outlier_detection": _outliers(),
        "circuit_breakers": {"thresholds": [_breakers(pool)]},
    }


def _health_check(protocol: str) -> dict[str, Any]:
    """A check of the port itself; with HTTP, Triton says whether every model of the replica is ready."""
    kind: dict[str, dict[str, Any]] = {
        "http": {"http_health_check": {"path": "/v2/health/ready"}},
        "grpc": {"grpc_health_check": {}},
    }
    every = seconds(CHECK_EVERY_S)
    intervals = dict.fromkeys(("interval", "no_traffic_interval", "unhealthy_interval"), every)
    return {**intervals, "timeout": "1s", "unhealthy_threshold": 2, "healthy_threshold": 1, **kind[protocol]}


def _outliers() -> dict[str, Any]:
    """Lost connections and tries out of time take a replica out for a moment, before its health check does.

    Its answers never do: under overload all replicas refuse requests, and nobody is left if they are taken out.
    """
    off = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate", "local_origin_success_rate")
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        **{f"enforcing_{rule}": 0 for rule in off},
        "interval": "1s",
        "base_ejection_time": seconds(EJECTED_S),
        "max_ejection_time": seconds(5 * EJECTED_S),
        "max_ejection_percent": 50,
    }


def _breakers(pool: Pool) -> dict[str, Any]:
    return {
        **dict.fromkeys(("max_pending_requests", "max_requests"), pool.most_in_flight),
        # None, as at a limit more requests over HTTP/1 would wait for a connection, not be refused. Each of the threads
        # keeps idle ones that no other thread can use; the limit on requests bounds them, too.
        "max_connections": 2**32 - 1,
        "retry_budget": {"budget_percent": {"value": RETRY_PERCENT}, "min_retry_concurrency": LEAST_RETRIES},
    }
