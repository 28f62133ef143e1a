"""The three ports of a server on one address: taken once to see that they are free."""

import contextlib
import socket
from collections.abc import Mapping

from triton_batching.terminal import Mistake


class PortError(Mistake):
    """A port that cannot be used."""


def free_ports(host: str, http: int, grpc: int, metrics: int) -> tuple[int, int, int]:
    """These ports, with a free one in place of each 0; raises `PortError`."""
    _refuse_twice({"--http-port": http, "--grpc-port": grpc, "--metrics-port": metrics})
    with contextlib.ExitStack() as held:
        return _claim(host, http, held), _claim(host, grpc, held), _claim(host, metrics, held)


def _refuse_twice(wanted: Mapping[str, int]) -> None:
    """0 is any free port, so it may be given to all."""
    for port in filter(None, wanted.values()):
        flags = [flag for flag, one in wanted.items() if one == port]
        if len(flags) > 1:
            raise PortError(
                f"port {port} is given twice, with {' and '.join(flags)}; each endpoint needs one of its own. "
                "Choose another for one of them; 0 takes any free one."
            )


def _claim(host: str, port: int, held: contextlib.ExitStack) -> int:
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))
        holder.listen()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "a port is a number from 0 to 65535"
        raise PortError(
            f"port {port} on {host} cannot be used ({why}), so the server would not start. Stop what "
            "uses it, or choose others with --http-port, --grpc-port and --metrics-port."
        ) from error
    return int(holder.getsockname()[1])
