"""What a running cluster does when it is told to scale, drain, update, try a canary or end."""

from collections.abc import Mapping, Sequence

import msgspec

from serve.cluster import plan_check
from serve.cluster.canary import ROLES
from serve.cluster.control import Abandon, Canary, Command, Down, Drain, Look, Promote, Scale, Update
from serve.cluster.engine import Engine
from serve.cluster.events import Events
from serve.cluster.group import Group
from serve.cluster.plan import Plan
from serve.cluster.status import NOBODY
from serve.front.door import Pool
from triton_batching.terminal import Mistake


class Commands:
    """The commands to the groups of one cluster, by deployment; `ends` after `down`.

    pools: the deployments as the open door sees them.
    """

    def __init__(
        self, plan: Plan, pools: Sequence[Pool], groups: Mapping[str, Group], engine: Engine, events: Events
    ) -> None:
        self.ends = False
        self._plan, self._groups, self._engine, self._events = plan, groups, engine, events
        self._is_retried = {pool.name: pool.is_retried for pool in pools}

    def do(self, command: Command) -> str:
        """Begin what the command asks for; says what has begun. Raises `Mistake`."""
        match command:
            case Look():
                return ""
            case Down():
                self.ends = True
                return "the cluster ends"
            case Drain(replica=replica):
                return self._drain(replica)
            case Scale(deployment=name, replicas=replicas):
                return self._scale_to(self._group(name), replicas)
            case Update(deployment=name):
                group = self._group(name)
                return self._update(group, group.config_name if command.keeps_config else command.config_name)
            case Canary(deployment=name):
                return self._begin_canary(self._group(name), command)
            case Promote(deployment=name):
                return self._promote(self._group(name))
            case Abandon(deployment=name):
                return self._abandon(self._group(name))

    def _group(self, name: str) -> Group:
        if deployment := self._plan.find(name):
            return self._groups[deployment.name]
        raise Mistake(f"{name}: no such deployment or model. There are: {', '.join(self._groups)}.")

    def _drain(self, name: str) -> str:
        for group in self._groups.values():
            if occupant := group.occupants.get(name):
                if occupant.leaving:
                    raise Mistake(f"{name}: leaves already ({occupant.leaving}).")
                if occupant.role:
                    raise Mistake(
                        f"{name}: is the {occupant.role} of {group.entry.name}. It leaves when the canary ends."
                    )
                if [each.name for each in group.ready() if not each.is_unready] == [name]:
                    raise Mistake(
                        f"{name}: no other replica of {group.entry.name} is ready. To replace it, start one first: "
                        f"python -m serve.cluster update {group.entry.name}"
                    )
                group.drain(name)
                return f"{name} drains"
        names = [name for group in self._groups.values() for name in group.occupants]
        raise Mistake(f"{name}: no such replica. There are: {', '.join(names) or 'none'}.")

    def _pool(self, group: Group, replicas: int, config_name: str | None) -> Pool:
        """The deployment with this count and configuration, as a door would see it; raises `Mistake`."""
        most = max(replicas, group.entry.scaling.max if group.entry.scaling else 0)
        entry = msgspec.structs.replace(group.entry, replicas=most, config_name=config_name, scaling=None)
        return plan_check.pool(entry, self._plan.repository, group.entry.name)

    def _scale_to(self, group: Group, replicas: int) -> str:
        name, before = group.entry.name, group.desired
        if group.entry.scaling:
            raise Mistake(f"{name}: scales by itself. Change min and max in its plan, and start the cluster again.")
        self._pool(group, replicas, group.config_name)
        self._engine.check([group.replica(number) for number in range(replicas - before)])
        self._events.add(name, f"scale {before} -> {replicas} by command")
        group.scale(replicas)
        return f"{name}: {before} -> {replicas} replicas{'' if replicas else f'; {NOBODY}'}"

    def _update(self, group: Group, config_name: str | None) -> str:
        _check_idle(group)
        name, file = group.entry.name, config_name or "config.pbtxt"
        if self._pool(group, group.desired, config_name).is_retried != self._is_retried[name]:
            raise Mistake(
                f"{name}: of the configuration that it started with and {file}, one has sequence_batching and one has "
                "not. The door must know that when it opens: end the cluster, and start it with another config_name."
            )
        try:
            self._engine.check([group.replica(0)] if group.desired else [])
        except Mistake as mistake:
            raise Mistake(f"{name}: an update starts one replica before another leaves. {mistake}") from mistake
        group.update(config_name)
        return f"{name}: the update to {file} begins"

    def _begin_canary(self, group: Group, command: Canary) -> str:
        _check_idle(group)
        name, file = group.entry.name, command.config_name or "config.pbtxt"
        if command.config_name == group.config_name:
            raise Mistake(f"{name}: has {file} already. For new files of its models: `update {name}`.")
        for config_name in (group.config_name, command.config_name):
            self._pool(group, group.desired + len(ROLES), config_name)
        if not group.ready():
            raise Mistake(f"{name}: no replica is ready, so a canary would get all requests. Wait for one.")
        self._engine.check([group.replica(number) for number in range(len(ROLES))])
        group.begin_canary(command.config_name, command.share)
        return f"{name}: the canary with {file} and its control start"

    def _promote(self, group: Group) -> str:
        name = group.entry.name
        _check_canary(group)
        if len(group.pair()) < len(ROLES):
            raise Mistake(f"{name}: the canary and its control are not both ready yet. Wait for them.")
        group.promote()
        return f"{name}: the update to {group.config_name or 'config.pbtxt'} begins"

    def _abandon(self, group: Group) -> str:
        _check_canary(group)
        group.abandon()
        return f"{group.entry.name}: the canary and its control leave"


def _check_idle(group: Group) -> None:
    """Raise `Mistake` if the configuration of the deployment is changing."""
    if group.is_updating:
        raise Mistake(f"{group.entry.name}: an update is under way. Wait for its end.")
    if group.canary:
        raise Mistake(f"{group.entry.name}: a canary with {group.canary.file} runs. `promote` or `abandon` it first.")


def _check_canary(group: Group) -> None:
    """Raise `Mistake` if the deployment has no canary; says why, if the cluster itself ended the last one."""
    if group.canary is None:
        raise Mistake(f"{group.entry.name}: {group.status().canary_failed or 'no canary runs'}.")
