"""What a cluster remembers from one `up` to the next: counts, configurations and the numbers of replicas."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from serve.cluster.plan import Deployment, Plan
from triton_batching import whole_file

VERSION = 1


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its count after `scale`, its configuration after `update`, and what the plan said then.

    number: that of the youngest replica; no replica after it has a number as low.
    """

    replicas: int
    config_name: str | None
    planned_replicas: int
    planned_config_name: str | None
    number: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The deployments by name."""

    version: int
    deployments: dict[str, Remembered]


def read(path: Path) -> Mapping[str, Remembered]:
    """The deployments of the file; none if there is no file, or none that this version can read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if state.version == VERSION:
            return state.deployments
    return {}


def write(path: Path, deployments: Mapping[str, Remembered]) -> None:
    """Write the file as a whole."""
    state = State(version=VERSION, deployments=dict(deployments))
    whole_file.write(path, msgspec.json.encode(state).decode())


def start_of(entry: Deployment, found: Remembered | None) -> Remembered:
    """What a deployment starts with: what is remembered, except where the plan says something else since."""
    if found is None:
        found = Remembered(replicas=-1, config_name=None, planned_replicas=-1, planned_config_name="", number=0)
    same_count, same_config = found.planned_replicas == entry.replicas, found.planned_config_name == entry.config_name
    replicas = found.replicas if same_count else entry.replicas
    if entry.scaling:
        replicas = min(max(replicas, entry.scaling.min), entry.scaling.max)
    return Remembered(
        replicas=replicas,
        config_name=found.config_name if same_config else entry.config_name,
        planned_replicas=entry.replicas,
        planned_config_name=entry.config_name,
        number=found.number,
    )


def differences(plan: Plan, starts: Mapping[str, Remembered]) -> list[str]:
    """How the cluster starts differently from its plan, a phrase each."""
    phrases = []
    for entry in plan.deployment:
        start = starts[entry.name]
        if start.replicas != entry.replicas:
            phrases.append(f"{start.replicas} replicas of {entry.name} (the plan says {entry.replicas})")
        if start.config_name != entry.config_name:
            phrases.append(f"{entry.name} with {start.config_name or 'config.pbtxt'}")
    return phrases
