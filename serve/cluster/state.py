"""What a cluster remembers from one `up` to the next: counts, configurations and the numbers of replicas."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from serve.cluster.plan import Deployment, Plan, Replicas
from triton_batching import whole_file

VERSION = 1


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its count after `scale`, its configuration after `update`, and what the plan said then.

    number: that of the youngest replica; no replica after it has a number as low.
    """

    replicas: Replicas
    config_name: str | None
    planned_replicas: int
    planned_config_name: str | None
    number: Annotated[int, Meta(ge=0)]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The deployments by name."""

    version: int
    deployments: dict[str, Remembered]


def read(path: Path) -> Mapping[str, Remembered]:
    """The deployments of the file; none if there is no file, or none that this version can read."""
    with contextlib.suppress(OSError, msgspec.DecodeError, RecursionError):
        state = msgspec.json.decode(path.read_bytes(), type=State)
        if state.version == VERSION:
            return state.deployments
    return {}


def write(path: Path, deployments: Mapping[str, Remembered]) -> None:
    """Write the file as a whole."""
    state = State(version=VERSION, deployments=dict(deployments))
    whole_file.write(path, msgspec.json.encode(state).decode())


def start_of(deployment: Deployment, remembered: Remembered | None) -> Remembered:
    """What a deployment starts with: what is remembered, except where the plan says something else since."""
    if remembered is None:
        remembered = Remembered(replicas=-1, config_name=None, planned_replicas=-1, planned_config_name="", number=0)
    same_count = remembered.planned_replicas == deployment.replicas
    same_config = remembered.planned_config_name == deployment.config_name
    replicas = remembered.replicas if same_count else deployment.replicas
    if deployment.scaling:
        replicas = min(max(replicas, deployment.scaling.min), deployment.scaling.max)
    return Remembered(
        replicas=replicas,
        config_name=remembered.config_name if same_config else deployment.config_name,
        planned_replicas=deployment.replicas,
        planned_config_name=deployment.config_name,
        number=remembered.number,
    )


def differences(plan: Plan, starts: Mapping[str, Remembered]) -> list[str]:
    """How the cluster starts differently from its plan, a phrase each."""
    phrases = []
    for deployment in plan.deployment:
        start, planned = starts[deployment.name], start_of(deployment, None)
        if start.replicas != planned.replicas:
            phrases.append(f"{start.replicas} replicas of {deployment.name} (the plan says {planned.replicas})")
        if start.config_name != planned.config_name:
            phrases.append(f"{deployment.name} with {start.config_name or 'config.pbtxt'}")
    return phrases


def continued(plan: Plan, starts: Mapping[str, Remembered]) -> Plan:
    """The plan with the counts and configurations that its deployments start with."""
    deployments = (
        msgspec.structs.replace(
            deployment, replicas=starts[deployment.name].replicas, config_name=starts[deployment.name].config_name
        )
        for deployment in plan.deployment
    )
    return msgspec.structs.replace(plan, deployment=tuple(deployments))
