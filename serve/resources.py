"""What a server takes from this machine, checked before it starts: three ports, and enough file descriptors."""

import contextlib
import random
import resource
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from triton_batching.terminal import Mistake

# A server with one model has 65 open, and about as many again for a moment while it starts. Each further instance and
# each connection adds one.
SERVER_DESCRIPTORS = 128
CONNECTIONS = 64
LOOPBACK = "127.0.0.1"
# A free port is chosen outside of the range from which Linux gives ports to connections: a connection that was made
# before the server listened took its port in one of some hundred starts.
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, TRIES = 10_000, 100
# What holds the ports that this process has chosen last, so that no other process chooses one before a server listens.
_CLAIMS: deque[socket.socket] = deque()
MOST_CLAIMS = 64


# What names the host and the ports: flags, or the keys of a plan.
FLAGS = ("--host", "--http-port", "--grpc-port", "--metrics-port")


class PortError(Mistake):
    """A host or a port that cannot be used."""


class DescriptorError(Mistake):
    """The limit of open files is too low for the server."""


def free_ports(host: str, http: int, grpc: int, metrics: int, names: Sequence[str] = FLAGS) -> tuple[int, int, int]:
    """These ports, with a free one in place of each 0; raises `PortError` in which the user's `names` stand."""
    host_name, *ports = names
    if not host.strip():
        raise PortError(f"{host_name} is empty, so the server would not start. Name an address, for example 127.0.0.1.")
    _refuse_twice(dict(zip(ports, (http, grpc, metrics), strict=True)))
    others = f"{ports[0]}, {ports[1]} and {ports[2]}"
    with contextlib.ExitStack() as sockets:
        chosen = [_claim(host, port, sockets, others) if port else 0 for port in (http, grpc, metrics)]
        found = [port or _free(host, sockets, others) for port in chosen]
    return found[0], found[1], found[2]


def loopback_port(taken: Collection[int]) -> int:
    """A free port of this machine's own address that is none of `taken`, which a server is about to take."""
    while True:
        with contextlib.ExitStack() as sockets:
            if (port := _free(LOOPBACK, sockets)) not in taken:
                return port


def address_flags(host: str, metrics_host: str) -> list[str]:
    """tritonserver's flags for the addresses to listen on; for IPv6 its HTTP library wants a prefix, gRPC brackets."""
    http, metrics = (f"ipv6:{name}" if ":" in name else name for name in (host, metrics_host))
    grpc = f"[{host}]" if ":" in host else host
    return [f"--http-address={http}", f"--grpc-address={grpc}", f"--metrics-address={metrics}"]


def check_descriptors(instances: int) -> None:
    """Raise `DescriptorError` if a server with that many model instances could not serve a few clients.

    The guard raises the server's soft limit to the hard limit, so only the hard limit counts.
    """
    needed = SERVER_DESCRIPTORS + instances + CONNECTIONS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise DescriptorError(
            f"this process may open {hard} files at most (ulimit -Hn), and a server with {instances} model instances "
            f"needs {needed} for itself and {CONNECTIONS} connections; with fewer it stops answering or never gets "
            f"ready. Raise the limit (limits.conf, LimitNOFILE= of systemd, docker run --ulimit nofile={needed})."
        )


def _refuse_twice(ports: Mapping[str, int]) -> None:
    """Raise `PortError` if two flags name the same port; all may be 0, which is any free port."""
    for port in filter(None, ports.values()):
        flags = [flag for flag, other in ports.items() if other == port]
        if len(flags) > 1:
            raise PortError(
                f"port {port} is given twice, with {' and '.join(flags)}; each endpoint needs one of its own. "
                "Choose another for one of them; 0 takes any free one."
            )


def _free(host: str, sockets: contextlib.ExitStack, others: str = "") -> int:
    """A free port for a server that is about to start; raises `PortError` if the host is wrong."""
    ephemeral = _claim(host, 0, sockets, others)  # which also tells whether the host is one
    first, last = map(int, EPHEMERAL.read_text().split())
    ports = [*range(LOWEST, first), *range(last + 1, 65_536)]
    for port in random.SystemRandom().sample(ports, min(TRIES, len(ports))):
        with contextlib.suppress(PortError, OSError):
            _hold(port)
            return _claim(host, port, sockets, others)
    return ephemeral


def _hold(port: int) -> None:
    """Choose a port for this process; raises `OSError` if another one has just chosen it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0triton-batching-port-{port}")  # a name in memory, which ends with its socket
    except OSError:
        claim.close()
        raise
    _CLAIMS.append(claim)
    while len(_CLAIMS) > MOST_CLAIMS:
        _CLAIMS.popleft().close()


def _claim(host: str, port: int, sockets: contextlib.ExitStack, others: str = "") -> int:
    if not 0 <= port <= 65_535:
        raise PortError(f"port {port}: a port is a number from 0 to 65535. Choose others with {others}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = sockets.enter_context(socket.socket(family))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except (OSError, TypeError, UnicodeError) as error:  # the latter two for a host that cannot be a name
        reason = getattr(error, "strerror", error)
        raise PortError(
            f"port {port} on {host} cannot be used ({reason}), so the server would not start. Stop the program "
            f"that uses it, or choose others with {others}."
        ) from error
    return int(listener.getsockname()[1])
