"""One tritonserver per device: which models it loads, under which configuration name, and with which flags.

A server of its own keeps each device to its planned share of a model's requests and to its planned batch; Triton would
spread a model that is on several devices over them as they are free.
"""

from dataclasses import dataclass

from perf.pack.placement import Node, Placement, Share

NAME = "packed"


@dataclass(frozen=True, kw_only=True)
class Server:
    """Servers that are alike, one for each of `devices`, and the variant of configs/ that they load."""

    node: Node
    devices: tuple[int, ...]
    config_name: str

    @property
    def takes_turns(self) -> bool:
        """Whether its models exclude each other in time."""
        return not self.node.together and len(self.node.shares) > 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Flags for tritonserver beyond the models and the variant."""
        return ("--rate-limit=execution_count",) if self.takes_turns else ()


def servers(placement: Placement) -> list[Server]:
    """The servers of a placement. All load `packed`, unless a model's values differ between its devices."""
    alike: dict[Node, list[int]] = {}
    for number, node in enumerate(placement.nodes):
        alike.setdefault(node, []).append(number)
    written: dict[str, tuple[Share, Node]] = {}
    found = []
    for node, devices in alike.items():
        free = not any(share.model in written for share in node.shares)
        name = NAME if free else f"{NAME}_{devices[0]}"
        if free:
            written |= {share.model: (share, node) for share in node.shares}
        found.append(Server(node=node, devices=tuple(devices), config_name=name))
    return found
