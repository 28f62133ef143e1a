"""Envoy's routes: which requests a door lets through, to which pool, and how often it tries them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from serve.front.door import FrontDoor, Pool

TENANT_HEADER, POOL_HEADER = "x-door-tenant", "x-door-pool"
MODELS = "/v2/models/"
SERVICE = "/inference.GRPCInferenceService/"
MODEL_METHODS = ("ModelInfer", "ModelConfig", "ModelReady", "ModelMetadata", "ModelStatistics")
SERVER_METHODS = (f"{SERVICE}ServerLive", f"{SERVICE}ServerReady", f"{SERVICE}ServerMetadata")
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
# The first try, and what comes after it.
MOST_RETRIES = 3
# A try may take a little longer than the slowest honest request, since the door's own queue and the network count.
SLACK, SLACK_S = 1.1, 0.1
# An answer of a replica is final, also 503 and UNAVAILABLE: Triton says so when its queue is full, and asking the
# others would multiply an overload. `reset` covers a try that ran out of time.
RETRY_ON_ANY_LOSS = "connect-failure,refused-stream,reset,retriable-headers"
# The request surely did not reach a replica.
RETRY_IF_NOT_SENT = "connect-failure,refused-stream,reset-before-request,retriable-headers"
# What a tritonserver that stops still answers over gRPC (seen on 2.51 after SIGTERM). The request did not run.
STOPPING = ("Server is stopping", "has no available versions")
SHORT_TIMEOUT_S = 10.0
# Of gRPC's health checks, which a replica answers to everybody.
HEALTH_PER_S, HEALTH_BYTES = 20, 1024
FILTERS = "type.googleapis.com/envoy.extensions.filters.http"
LUA = f"{FILTERS}.lua.v3.LuaPerRoute"
EVERYONE = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}, "disabled": True}
# Without a token, and without the rate of a tenant, whom a stranger could name in its header.
ALWAYS_OPEN = {f"envoy.filters.http.{name}": OFF for name in ("api_key_auth", "local_ratelimit")}
SMALL_AND_RARE = {
    "envoy.filters.http.api_key_auth": OFF,
    "envoy.filters.http.local_ratelimit": {
        "@type": f"{FILTERS}.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "health",
        "token_bucket": {"max_tokens": HEALTH_PER_S, "tokens_per_fill": HEALTH_PER_S, "fill_interval": "1s"},
        "filter_enabled": EVERYONE,
        "filter_enforced": EVERYONE,
        "rate_limited_as_resource_exhausted": True,
    },
    "envoy.filters.http.buffer": {
        "@type": f"{FILTERS}.buffer.v3.BufferPerRoute",
        "buffer": {"max_request_bytes": HEALTH_BYTES},
    },
}


def cluster(pool: Pool, protocol: str) -> str:
    """The name of Envoy's cluster for the pool's `http` or `grpc` ports."""
    return f"{pool.name}.{protocol}"


def try_s(pool: Pool) -> float:
    """The longest time of one try."""
    return pool.slowest_s * SLACK + SLACK_S


def longest_s(door: FrontDoor) -> float:
    """The longest time of a request with all its tries."""
    return max(SHORT_TIMEOUT_S, *map(_all_tries_s, door.pools))


def _all_tries_s(pool: Pool) -> float:
    return try_s(pool) * (MOST_RETRIES + 1 if pool.is_retried else 1)


def routes(door: FrontDoor) -> dict[str, Any]:
    """The routes of both ports; what none of them names is answered with 404 or UNIMPLEMENTED."""
    return {
        "name": "door",
        "virtual_hosts": [
            {
                "name": "door",
                "domains": ["*"],
                "routes": [
                    *_grpc(door),
                    *_http(door),
                    _refusal({"prefix": "/"}, 404, "the front door has no such path"),
                ],
                "request_headers_to_remove": [*door.removed_headers, TENANT_HEADER, POOL_HEADER],
                "request_body_buffer_limit": door.retry_buffer_bytes,
            }
        ],
    }


def seconds(time_s: float) -> str:
    """A time as protobuf's JSON says it."""
    return f"{time_s:.3f}s"


def _refusal(match: dict[str, Any], status: int, text: str, **more: Any) -> dict[str, Any]:
    return {"match": match, "direct_response": {"status": status, "body": {"inline_string": text}}, **more}


def _action(pool: Pool, protocol: str) -> dict[str, Any]:
    retry: dict[str, Any] = {
        "retry_on": RETRY_ON_ANY_LOSS if pool.is_retried else RETRY_IF_NOT_SENT,
        "retriable_headers": [{"name": "grpc-message", "string_match": {"contains": text}} for text in STOPPING],
        "num_retries": MOST_RETRIES,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.010s", "max_interval": "0.100s"},
    }
    if pool.is_retried:
        retry["per_try_timeout"] = seconds(try_s(pool))
    return {"cluster": cluster(pool, protocol), "timeout": seconds(_all_tries_s(pool)), "retry_policy": retry}


def _reading(pool: Pool, protocol: str) -> dict[str, Any]:
    """The action for requests that only read: they may always run twice."""
    action = _action(pool, protocol)
    action["retry_policy"] |= {"retry_on": RETRY_ON_ANY_LOSS, "per_try_timeout": seconds(SHORT_TIMEOUT_S / 4)}
    return action | {"timeout": seconds(SHORT_TIMEOUT_S)}


def _grpc(door: FrontDoor) -> Iterator[dict[str, Any]]:
    # A small compressed message may be a large one. Triton would unpack it without a limit.
    packed = {"name": "grpc-encoding", "invert_match": True, "string_match": {"exact": "identity"}}
    text = "the front door takes no compressed messages"
    yield _refusal({"prefix": "/", "grpc": {}, "headers": [packed]}, 404, text)
    first, several = door.pools[0], len(door.pools) > 1
    health = {"match": {"path": HEALTH_METHOD, "grpc": {}}, "route": _reading(first, "grpc")}
    yield health | {"typed_per_filter_config": SMALL_AND_RARE}
    for method in SERVER_METHODS:
        yield {"match": {"path": method, "grpc": {}}, "route": _reading(first, "grpc")}
    for method in MODEL_METHODS:
        act = _action if method == "ModelInfer" else _reading
        path: dict[str, Any] = {"path": f"{SERVICE}{method}", "grpc": {}}
        if not several:
            yield {"match": path, "route": act(first, "grpc")}
            continue
        named = _names(door.pools)
        for pool in door.pools:
            chosen = {"headers": [{"name": POOL_HEADER, "string_match": {"exact": pool.name}}]}
            yield {"match": path | chosen, "route": act(pool, "grpc"), "typed_per_filter_config": named}
        # The filter sets the header or answers by itself.
        yield _refusal(path, 404, "no pool", typed_per_filter_config=named)


def _names(pools: Sequence[Pool]) -> dict[str, Any]:
    """The filter that reads the model's name, with the pool of each name."""
    by_model = {model: pool.name for pool in pools for model in pool.models}
    context = {"pools": by_model}
    return {"envoy.filters.http.lua": {"@type": LUA, "name": "model_name", "filter_context": context}}


def _http(door: FrontDoor) -> Iterator[dict[str, Any]]:
    limits = {
        "envoy.filters.http.lua": {"@type": LUA, "name": "limits", "filter_context": {"most_depth": door.most_depth}}
    }
    # Triton unpacks a body before it reads the JSON, so nobody could look into it here.
    packed = {"name": "content-encoding", "present_match": True}
    yield _refusal(
        {"prefix": "/", "headers": [packed]}, 415, "the front door takes no compressed bodies (Content-Encoding)"
    )
    first, get, post = door.pools[0], _method("GET"), _method("POST")
    yield _refusal({"path": "/v2/health/live", **get}, 200, "", typed_per_filter_config=ALWAYS_OPEN)
    yield {"match": {"safe_regex": {"regex": "/v2/?"}, **get}, "route": _reading(first, "http")}
    if len(door.pools) == 1:
        yield {"match": {"path": "/v2/models/stats", **get}, "route": _reading(first, "http")}
    for pool in door.pools:
        names = "|".join(map(re.escape, pool.models))
        model = f"{MODELS}({names})(/versions/[0-9]+)?"
        yield {
            "match": {"safe_regex": {"regex": f"{model}/(infer|generate)"}, **post},
            "route": _action(pool, "http"),
            "typed_per_filter_config": limits,
        }
        yield {
            "match": {"safe_regex": {"regex": f"{model}(/config|/ready|/stats)?"}, **get},
            "route": _reading(pool, "http"),
        }
    yield _refusal({"prefix": MODELS}, 404, "no pool of the front door serves")


def _method(name: str) -> dict[str, Any]:
    """The part of a match that asks for a method of HTTP."""
    return {"headers": [{"name": ":method", "string_match": {"exact": name}}]}
