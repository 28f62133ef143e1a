"""The servers of a placement, one tritonserver per device: its models, configuration name and flags.

With its own server each device gets its planned share of a model's requests and its planned batch. A single Triton
would spread a model's requests over all devices that are free.
"""

from dataclasses import dataclass

from perf.pack.placement import Node, Placement

NAME = "packed"


@dataclass(frozen=True, kw_only=True)
class Server:
    """Equal servers, one per device in `devices`, and the configuration that they load."""

    node: Node
    devices: tuple[int, ...]
    config_name: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """More flags for tritonserver."""
        return ("--rate-limit=execution_count",) if self.node.takes_turns else ()


def servers(placement: Placement) -> list[Server]:
    """The servers of a placement. They load the configuration `packed`, or `packed_N` if a model needs another one."""
    devices_of: dict[Node, list[int]] = {}
    for number, node in enumerate(placement.nodes):
        devices_of.setdefault(node, []).append(number)
    configured: set[str] = set()
    result = []
    for node, devices in devices_of.items():
        name = f"{NAME}_{devices[0]}" if configured & set(node.models) else NAME
        if name == NAME:
            configured |= set(node.models)
        result.append(Server(node=node, devices=tuple(devices), config_name=name))
    return result
