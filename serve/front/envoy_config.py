"""Envoy's configuration, made from a front door."""

import math
from pathlib import Path
from typing import Any

from serve.front.door import FrontDoor, Tenant, Tls
from serve.front.envoy_clusters import clusters, socket_address
from serve.front.envoy_routes import EVERYONE, FILTERS, MODELS, TENANT_HEADER, cluster, longest_s, routes, seconds

READY = "/v2/health/ready"
ADMIN_SOCKET, SECRET_FILE = "admin.sock", "certificate.json"
MOST_HEADERS, MOST_HEADER_KIB = 100, 32
MOST_STREAMS = 1024
LEAST_MEMORY, REQUESTS_IN_MEMORY = 1 << 30, 64
# Only requests of 2 to this power bytes and more are given up for memory.
LEAST_RESET_POWER = 20
# Envoy refuses to fill a bucket more often.
LEAST_FILL_S = 0.05
RESOURCE_EXHAUSTED = "8"
# The time between telling a client that its connection ends and ending it.
DRAIN_S = 1


def bootstrap(door: FrontDoor, folder: Path) -> dict[str, Any]:
    """The whole configuration; `folder` gets the admin socket, and holds the files of endpoints and certificate."""
    return {
        "node": {"id": "door", "cluster": "door"},
        "admin": {
            "address": {"pipe": {"path": str(folder / ADMIN_SOCKET), "mode": 0o600}},
            "ignore_global_conn_limit": True,
        },
        "static_resources": {"listeners": [_listener(door, folder)], "clusters": clusters(door, folder)},
        "overload_manager": _overload(door),
    }


def _overload(door: FrontDoor) -> dict[str, Any]:
    """Limits on connections and memory: the door keeps each request until it is answered."""
    monitors = "type.googleapis.com/envoy.extensions.resource_monitors"
    connections = f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig"
    heap, resets = "envoy.resource_monitors.fixed_heap", "envoy.overload_actions.reset_high_memory_stream"
    return {
        "refresh_interval": "0.250s",
        "resource_monitors": [
            _typed(
                "envoy.resource_monitors.global_downstream_max_connections",
                connections,
                max_active_downstream_connections=door.most_connections,
            ),
            _typed(heap, f"{monitors}.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=memory_bytes(door)),
        ],
        "actions": [
            {"name": "envoy.overload_actions.shrink_heap", "triggers": [{"name": heap, "threshold": {"value": 0.7}}]},
            # First the requests that take most, then every new one.
            {
                "name": resets,
                "triggers": [{"name": heap, "scaled": {"scaling_threshold": 0.7, "saturation_threshold": 0.9}}],
            },
            {
                "name": "envoy.overload_actions.stop_accepting_requests",
                "triggers": [{"name": heap, "threshold": {"value": 0.9}}],
            },
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": LEAST_RESET_POWER},
    }


def memory_bytes(door: FrontDoor) -> int:
    """The most memory that the door may take for requests and answers."""
    return max(LEAST_MEMORY, REQUESTS_IN_MEMORY * door.retry_buffer_bytes)


def secret(tls: Tls) -> dict[str, Any]:
    """The content of the certificate's file; Envoy reads a renewed certificate when it is moved to its place."""
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
                "name": "door",
                "tls_certificate": {
                    "certificate_chain": {"filename": str(tls.certificate.resolve())},
                    "private_key": {"filename": str(tls.key.resolve())},
                    "watched_directory": {"path": str(tls.certificate.resolve().parent)},
                },
            }
        ]
    }


def _typed(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": kind, **settings}}


def _listener(door: FrontDoor, folder: Path) -> dict[str, Any]:
    """One listener with both ports, so that a tenant has one bucket for both."""
    chain: dict[str, Any] = {
        "filters": [_connections(door)],
        "transport_socket_connect_timeout": seconds(door.headers_s),
    }
    if door.tls:
        chain["transport_socket"] = _transport(folder)
    return {
        "name": "door",
        "address": socket_address(door.address, door.http_port),
        "additional_addresses": [{"address": socket_address(door.address, door.grpc_port)}],
        "filter_chains": [chain],
    }


def _transport(folder: Path) -> dict[str, Any]:
    file = {"path_config_source": {"path": str(folder / SECRET_FILE)}, "resource_api_version": "V3"}
    return _typed(
        "envoy.transport_sockets.tls",
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context={
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificate_sds_secret_configs": [{"name": "door", "sds_config": file}],
        },
    )


def _connections(door: FrontDoor) -> dict[str, Any]:
    """What is done with a connection: HTTP/1 and HTTP/2, with limits on everything that a client could stretch."""
    return _typed(
        "envoy.filters.network.http_connection_manager",
        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="door",
        codec_type="AUTO",
        generate_request_id=False,
        server_header_transformation="PASS_THROUGH",
        # Nobody is internal, so Envoy ignores its own headers (retries, timeouts) in requests.
        use_remote_address=True,
        internal_address_config={"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        normalize_path=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        max_request_headers_kb=MOST_HEADER_KIB,
        common_http_protocol_options={"idle_timeout": seconds(door.idle_s), "max_headers_count": MOST_HEADERS},
        http2_protocol_options={"max_concurrent_streams": MOST_STREAMS},
        request_headers_timeout=seconds(door.headers_s),
        request_timeout=seconds(door.request_s),
        # It also runs while a replica works on the request.
        stream_idle_timeout=seconds(max(door.idle_s, longest_s(door) + 1.0)),
        drain_timeout=f"{DRAIN_S}s",
        http_filters=_filters(door),
        route_config=routes(door),
        local_reply_config=_own_answers(),
    )


def _own_answers() -> dict[str, Any]:
    """The form of the door's own refusals: JSON as Triton's, and for gRPC the text and the right status."""
    grpc = {"header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}}
    too_large = {"and_filter": {"filters": [grpc, _status("EQ", 413)]}}
    text = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}}
    header = {"key": "grpc-status", "value": RESOURCE_EXHAUSTED}
    json = {"json_format": {"error": "%LOCAL_REPLY_BODY%"}}
    models = {"header_filter": {"header": {"name": ":path", "string_match": {"prefix": MODELS}}}}
    unknown = {"and_filter": {"filters": [models, _status("EQ", 404)]}}
    ready = {"header_filter": {"header": {"name": ":path", "string_match": {"exact": READY}}}}
    nobody = {"json_format": {"error": "a deployment has no replica that is ready"}}
    named = {"json_format": {"error": "%LOCAL_REPLY_BODY% %REQ(:PATH)%"}}
    return {
        "mappers": [
            {"filter": too_large, "headers_to_add": [{"header": header}], "body_format_override": text},
            {"filter": grpc, "body_format_override": text},
            {"filter": {"and_filter": {"filters": [ready, _status("EQ", 503)]}}, "body_format_override": nobody},
            {"filter": unknown, "body_format_override": named},
            {"filter": _status("GE", 400), "body_format_override": json},
        ]
    }


def _status(operation: str, value: int) -> dict[str, Any]:
    comparison = {"op": operation, "value": {"default_value": value, "runtime_key": "none"}}
    return {"status_code_filter": {"comparison": comparison}}


def _filters(door: FrontDoor) -> list[dict[str, Any]]:
    here = Path(__file__).parent
    codes = {name: {"filename": str(here / f"{name}.lua")} for name in ("limits", "model_name")}
    return [
        _ready(door),
        *(_tenants(door.tenants) if door.tenants else ()),
        # Replicas get whole requests only: Triton waits for the rest of a slow one without a time limit.
        _typed(
            "envoy.filters.http.buffer", f"{FILTERS}.buffer.v3.Buffer", max_request_bytes=door.largest_request_bytes
        ),
        _typed("envoy.filters.http.lua", f"{FILTERS}.lua.v3.Lua", source_codes=codes),
        _typed("envoy.filters.http.router", f"{FILTERS}.router.v3.Router"),
    ]


def _ready(door: FrontDoor) -> dict[str, Any]:
    """The door is ready when each pool has a healthy replica; who asks needs no token."""
    paths = [{"name": ":path", "string_match": {"exact": READY}}]
    least = {cluster(pool, protocol): {"value": 1.0} for pool in door.pools for protocol in ("http", "grpc")}
    return _typed(
        "envoy.filters.http.health_check",
        f"{FILTERS}.health_check.v3.HealthCheck",
        pass_through_mode=False,
        headers=paths,
        cluster_min_healthy_percentages=least,
    )


def _tenants(tenants: tuple[Tenant, ...]) -> list[dict[str, Any]]:
    """The filters that find the tenant of a token and take from the tenant's bucket."""
    keys = [{"key": tenant.token, "client": tenant.name} for tenant in tenants]
    action = {"request_headers": {"header_name": TENANT_HEADER, "descriptor_key": "tenant"}}
    return [
        _typed(
            "envoy.filters.http.api_key_auth",
            f"{FILTERS}.api_key_auth.v3.ApiKeyAuth",
            credentials=keys,
            key_sources=[{"header": "Authorization"}],
            forwarding={"header": TENANT_HEADER, "hide_credentials": True},
        ),
        _typed(
            "envoy.filters.http.local_ratelimit",
            f"{FILTERS}.local_ratelimit.v3.LocalRateLimit",
            stat_prefix="tenants",
            token_bucket={"max_tokens": 1_000_000, "tokens_per_fill": 1_000_000, "fill_interval": "1s"},
            always_consume_default_token_bucket=False,
            filter_enabled=EVERYONE,
            filter_enforced=EVERYONE,
            rate_limited_as_resource_exhausted=True,
            rate_limits=[{"actions": [action]}],
            descriptors=[
                {"entries": [{"key": "tenant", "value": tenant.name}], "token_bucket": _bucket(tenant)}
                for tenant in tenants
            ],
        ),
    ]


def _bucket(tenant: Tenant) -> dict[str, Any]:
    tokens = max(1, math.ceil(tenant.requests_per_s * LEAST_FILL_S))
    interval = f"{tokens / tenant.requests_per_s:.9f}s"
    return {"max_tokens": max(tenant.burst, tokens), "tokens_per_fill": tokens, "fill_interval": interval}
