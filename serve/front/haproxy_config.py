"""HAProxy's configuration, made from a front door: the smaller choice, for one pool."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve.front.door import FrontDoor, Pool
from serve.front.envoy_clusters import PROTOCOLS
from serve.front.envoy_routes import (
    HEALTH_BYTES,
    HEALTH_METHOD,
    HEALTH_PER_S,
    MODEL_METHODS,
    MODELS,
    MOST_RETRIES,
    SERVER_METHODS,
    SERVICE,
    try_s,
)

CONTROL_SOCKET, METRICS_SOCKET, TENANTS_FILE, CERTIFICATE_FILE = (
    "control.sock",
    "metrics.sock",
    "tenants.map",
    "tls.pem",
)
SLOTS = 64
# The table that counts gRPC's health checks.
HEALTH = "health_checks"
# The name of a slot in HAProxy, before its number.
SERVER = "s"
CHECK_EVERY_MS = 500
MOST_HEADERS = 100
MOST_HEADER_BYTES, MOST_URL_BYTES = 32_768, 8192
# The buffer holds headers and body together, and HAProxy's own overhead. What does not fit is not examined, so headers
# and URL must leave room for the largest body.
BUFFER_SLACK = 65_536
# Buffers take at most this much.
MEMORY = 1 << 30
# gRPC's numbers of a status, by the HTTP status that the door gives to others.
GRPC_STATUS = {400: 3, 401: 16, 404: 12, 413: 8, 415: 12, 429: 8, 431: 8, 500: 13, 503: 14}


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A server of HAProxy's configuration; `share` is its weight, 0 while it drains."""

    replica: str = ""
    host: str = "127.0.0.1"
    http_port: int = 1
    grpc_port: int = 1
    share: int = 0

    def address(self, protocol: str) -> str:
        """`host:port` for the protocol."""
        port = self.http_port if protocol == "http" else self.grpc_port
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


Slots = Mapping[int, Slot]


def text(door: FrontDoor, folder: Path, slots: Slots, *, workers: int = 1) -> str:
    """The whole configuration. `workers` is the number of threads.

    `folder` holds the sockets, the tenants' tokens and the certificate.
    """
    [pool] = door.pools
    lines = [
        *_global(door, folder, workers),
        *_defaults(door, pool),
        *_front(door, folder),
        *(line for protocol in PROTOCOLS for line in _back(door, pool, protocol, slots)),
        *(
            line
            for tenant in door.tenants
            for line in _bucket(f"tenant.{tenant.name}", tenant.requests_per_s, tenant.burst)
        ),
        *_bucket(HEALTH, HEALTH_PER_S, HEALTH_PER_S),
        "frontend metrics",
        f"    bind unix@{folder / METRICS_SOCKET} mode 600",
        "    http-request use-service prometheus-exporter",
    ]
    return "\n".join(lines) + "\n"


def tenants(door: FrontDoor) -> str:
    """The content of the file that names the tenant of each token."""
    return "".join(f"{tenant.token} {tenant.name}\n" for tenant in door.tenants)


def server(number: int) -> str:
    """The name of a slot in HAProxy."""
    return f"{SERVER}{number}"


def _ms(time_s: float) -> str:
    return f"{max(1, round(time_s * 1e3))}ms"


def _global(door: FrontDoor, folder: Path, workers: int) -> Iterator[str]:
    yield "global"
    yield f"    stats socket {folder / CONTROL_SOCKET} mode 600 level admin"
    yield f"    nbthread {workers}"
    yield f"    maxconn {door.most_connections}"
    # A request can only be sent again while all of it is in the buffer.
    yield f"    tune.bufsize {door.retry_buffer_bytes + BUFFER_SLACK}"
    yield f"    tune.buffers.limit {MEMORY // door.retry_buffer_bytes}"
    # By default a frame may be as large as the buffer, which is more than HTTP/2 allows.
    yield "    tune.h2.max-frame-size 16384"
    yield f"    tune.http.maxhdr {MOST_HEADERS}"
    yield f"    setenv DOOR_MOST_DEPTH {door.most_depth}"
    for name in ("limits", "haproxy_limits"):
        yield f"    lua-load {Path(__file__).with_name(name)}.lua"


def _defaults(door: FrontDoor, pool: Pool) -> Iterator[str]:
    yield "defaults"
    yield "    mode http"
    for name, time_s in (
        # With http-buffer-request this is the time of headers and body together.
        ("http-request", door.request_s),
        ("client", door.idle_s),
        ("http-keep-alive", door.idle_s),
        ("connect", 1.0),
        ("queue", 1.0),
        ("server", try_s(pool)),
    ):
        yield f"    timeout {name} {_ms(time_s)}"
    yield "    option http-buffer-request"
    # Over HTTP/2 it takes a connection lost with its request for one that failed, so `conn-failure` is not safe.
    yield f"    retries {MOST_RETRIES if pool.is_retried else 0}"
    if pool.is_retried:
        yield "    option redispatch 1"
        yield "    retry-on conn-failure empty-response response-timeout junk-response 0rtt-rejected"


def _front(door: FrontDoor, folder: Path) -> Iterator[str]:
    tls = f" ssl crt {folder / CERTIFICATE_FILE} alpn h2,http/1.1 ssl-min-ver TLSv1.2" if door.tls else ""
    host = door.address
    yield "frontend door"
    for port, plain in ((door.http_port, ""), (door.grpc_port, " proto h2")):
        yield f"    bind {f'[{host}]' if ':' in host else host}:{port}{tls or plain}"
    [pool] = door.pools
    names = "|".join(model.replace(".", r"\.") for model in pool.models)
    model = f"^{MODELS}({names})(/versions/[0-9]+)?"
    grpc = " ".join([HEALTH_METHOD, *SERVER_METHODS, *(SERVICE + method for method in MODEL_METHODS)])
    # A name that several lines share is true if one of them is.
    yield "    acl is_grpc req.hdr(content-type) -m beg application/grpc"
    yield f"    acl grpc_path path {grpc}"
    yield f"    acl infer path_reg {model}/(infer|generate)$"
    yield f"    acl reading path_reg {model}(/config|/ready|/stats)?$"
    yield f"    acl reading path /v2 /v2/ {MODELS}stats"
    yield f"    acl health path /v2/health/live /v2/health/ready {HEALTH_METHOD}"
    yield f"    acl health_check path {HEALTH_METHOD}"
    yield "    acl plain req.hdr(grpc-encoding) identity"
    yield f"    acl full be_conn({pool.name}.http) ge {pool.most_in_flight}"
    yield f"    acl full be_conn({pool.name}.grpc) ge {pool.most_in_flight}"
    # HAProxy gives its own answers a type only if they have a body.
    yield "    http-request set-var(txn.is_grpc) bool(true) if is_grpc"
    untyped = "{ var(txn.is_grpc) -m bool } !{ res.hdr(content-type) -m found }"
    yield f"    http-after-response set-header content-type application/grpc if {untyped}"
    yield "    http-request return status 200 if { path /v2/health/live } METH_GET"
    ready = f"{{ path /v2/health/ready }} METH_GET {{ nbsrv({pool.name}.http) gt 0 }}"
    yield f"    http-request return status 200 if {ready}"
    yield from _refuse(503, "no replica is ready", "if { path /v2/health/ready }")
    # A fetch that fails is refused, too.
    small = (f"{{ req.hdrs,length le {MOST_HEADER_BYTES} }}", f"{{ url,length le {MOST_URL_BYTES} }}")
    for each in small:
        yield from _refuse(431, "Request Header Fields Too Large", f"if !{each}")
    yield from _tenants(door, folder)
    for packed in ("{ req.hdr(content-encoding) -m found }", "{ req.hdr(grpc-encoding) -m found } !plain"):
        yield from _refuse(415, "the front door takes no compressed requests", f"if {packed}")
    known = ("is_grpc grpc_path", "!is_grpc infer METH_POST", "!is_grpc reading METH_GET")
    for number, condition in enumerate(known):
        yield f"    http-request set-var(txn.known) int({number}) if {condition}"
    yield from _refuse(404, "the front door has no such path", "if !{ var(txn.known) -m found }")
    largest = door.largest_request_bytes
    yield from _refuse(413, "Payload Too Large", f"if {{ req.body_size gt {largest} }}")
    yield from _refuse(413, "Payload Too Large", f"if {{ req.body_len gt {largest} }}")
    yield from _refuse(413, "Payload Too Large", f"if health_check {{ req.body_len gt {HEALTH_BYTES} }}")
    yield "    http-request lua.limits if infer !is_grpc"
    yield from _refuse(400, "%[var(txn.refused)]", "if { var(txn.refused) -m found }")
    yield from _refuse(500, "the front door could not examine it", "if infer !is_grpc !{ var(txn.examined) -m found }")
    yield from _refuse(503, "the front door is full", "if full")
    for header in door.removed_headers:
        yield f"    http-request del-header {header}"
    yield f"    use_backend {pool.name}.grpc if is_grpc"
    yield f"    default_backend {pool.name}.http"


def _refuse(status: int, reason: str, condition: str) -> Iterator[str]:
    """The door's own answer: a status of gRPC, or JSON as Triton's."""
    number = GRPC_STATUS[status]
    yield f'    http-request return status 200 hdr grpc-status {number} hdr grpc-message "{reason}" {condition} is_grpc'
    json = f'{{\\"error\\":\\"{reason}\\"}}'
    yield f'    http-request return status {status} content-type application/json lf-string "{json}" {condition}'


def _tenants(door: FrontDoor, folder: Path) -> Iterator[str]:
    if not door.tenants:
        return
    yield f"    http-request set-var(txn.tenant) http_auth_bearer,map_str({folder / TENANTS_FILE})"
    yield from _refuse(401, "no tenant of the front door has this token", "if !health !{ var(txn.tenant) -m found }")
    # With a token or without: the first table that tracks a request keeps it.
    yield f"    http-request track-sc0 int(1) table {HEALTH} if health_check"
    yield from _refuse(
        429, "too many health checks", f"if health_check {{ sc0_gpc0_rate({HEALTH}) ge {HEALTH_PER_S} }}"
    )
    for tenant in door.tenants:
        mine = f"{{ var(txn.tenant) -m str {tenant.name} }}"
        yield f"    http-request track-sc0 int(1) table tenant.{tenant.name} if {mine}"
    for tenant in door.tenants:
        mine = f"{{ var(txn.tenant) -m str {tenant.name} }}"
        too_many = f"!health_check {{ sc0_gpc0_rate(tenant.{tenant.name}) ge {tenant.burst} }}"
        yield from _refuse(429, "the rate of this tenant is used up", f"if {mine} {too_many}")
    yield "    http-request sc-inc-gpc0(0)"


def _bucket(name: str, requests_per_s: float, burst: int) -> Iterator[str]:
    """At most `burst` requests in the time in which the rate allows as many."""
    yield f"backend {name}"
    period = _ms(burst / requests_per_s)
    yield f"    stick-table type integer size 1 expire 24h store gpc0,gpc0_rate({period})"


def _back(door: FrontDoor, pool: Pool, protocol: str, slots: Slots) -> Iterator[str]:
    yield f"backend {pool.name}.{protocol}"
    yield "    balance leastconn"
    yield "    http-reuse always"
    if protocol == "http":
        yield "    option httpchk GET /v2/health/ready"
    for number in range(SLOTS):
        # A check over HTTP/2 without TLS times out, so the gRPC port has the state of the HTTP port.
        track = f"proto h2 track {pool.name}.http/{server(number)}"
        check = f"check inter {CHECK_EVERY_MS}ms fastinter 100ms fall 2 rise 1"
        if pool.is_retried:
            check += " on-marked-down shutdown-sessions"
            track += " on-marked-down shutdown-sessions"
        slot = slots.get(number, Slot())
        checked = check if protocol == "http" else track
        state = "" if number in slots else " disabled"
        yield f"    server {server(number)} {slot.address(protocol)} weight {slot.share} {checked}{state}"
