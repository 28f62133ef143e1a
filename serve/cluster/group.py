"""The replicas of one deployment: started, replaced after their death, drained, and renewed one by one."""

import time
from collections.abc import Mapping
from pathlib import Path

from serve.cluster import plan_check, reconcile
from serve.cluster.canary import ABANDONED, CANARY, CONTROL, Canary
from serve.cluster.engine import Engine, Phase, Replica, ReplicaState
from serve.cluster.events import Events
from serve.cluster.occupant import ORDINARY, Occupant
from serve.cluster.pace import Pace
from serve.cluster.plan import Deployment, Limits
from serve.cluster.state import Remembered
from serve.cluster.status import DeploymentStatus
from serve.front.door import Endpoint, Traffic

# This many starts that fail in an update end it.
MOST_FAILED_UPDATE = 2
# A replica without requests is stopped after this time even if the door was not told to forget it.
FORGET_S = 5.0
NO_TRAFFIC = Traffic(in_flight=0, requests=0, failures=0)


class Group:
    """A deployment and its replicas by name; `tick` does what there is to do and does not block.

    is_updating: whether replicas are being replaced by those of another configuration.
    """

    def __init__(
        self, entry: Deployment, start: Remembered, engine: Engine, events: Events, *, limits: Limits, repository: Path
    ) -> None:
        self.entry, self.desired, self.config_name = entry, start.replicas, start.config_name
        self.occupants: dict[str, Occupant] = {}
        self._engine, self._events, self._limits, self._repository = engine, events, limits, repository
        self._number = start.number
        self._generation = self._latest_generation = 0
        # During an update: the generation and the configuration to go back to.
        self._before: tuple[int, str | None] | None = None
        self.is_updating, self._update, self._failed_update = False, "", 0
        self.pace = Pace()
        self.deaths = self.drained = 0
        self.canary: Canary | None = None
        self._canary_failed = ""

    def remembered(self) -> Remembered:
        """What the next `up` continues with."""
        return Remembered(
            replicas=self.desired,
            config_name=self._before[1] if self._before else self.config_name,
            planned_replicas=self.entry.replicas,
            planned_config_name=self.entry.config_name,
            number=self._number,
        )

    def tick(self, states: Mapping[str, ReplicaState], traffic: Mapping[str, Traffic]) -> None:
        """Take note of what has changed, start and drain replicas, and stop those that have drained."""
        for occupant in list(self.occupants.values()):
            occupant.state = states.get(occupant.name, ReplicaState(phase=Phase.ENDED, problem="the engine lost it"))
            if occupant.state.phase is Phase.ENDED:
                self._end(occupant)
            elif occupant.state.phase is Phase.READY and occupant.ready_at is None:
                self._welcome(occupant)
            elif occupant.state.problem and not occupant.leaving and (occupant.role or len(self.ready()) > 1):
                self._replace(occupant, occupant.state.problem)
            elif occupant.is_ending:
                self._replace(occupant, "takes no new connections, as a server does that ends")
            elif occupant.hangs(self._limits.hung_s):
                self._replace(occupant, f"hangs: not ready for {self._limits.hung_s:g} s")
                occupant.done_at = time.monotonic()
            elif news := occupant.news(self._limits.hung_s):
                self._events.add(occupant.name, news)
        self._reconcile()
        self._keep_canary()
        self._finish_update()
        for occupant in self.occupants.values():
            if occupant.leaving and occupant.done_at is None:
                self._note_drained(occupant, traffic.get(occupant.name, NO_TRAFFIC).in_flight)
            elif occupant.done_at and not occupant.stopping and time.monotonic() - occupant.done_at > FORGET_S:
                self._stop(occupant)

    def replica(self, number: int) -> Replica:
        """The replica with this number."""
        return plan_check.replica(self.entry, number, self.config_name, self._repository)

    def scale(self, replicas: int) -> None:
        """Have this number of replicas by command, which also tries again what failed."""
        self.desired = replicas
        self.pace.try_again()

    def drain(self, name: str) -> None:
        """Let a replica leave; another one takes its place."""
        self._leave(self.occupants[name], "drained by command")

    def update(self, config_name: str | None) -> None:
        """Replace the replicas one by one, with this configuration."""
        self._latest_generation += 1
        self._begin_update(self._latest_generation, config_name)

    def begin_canary(self, config_name: str | None, share: float) -> None:
        """Start a canary and its control."""
        self._latest_generation += 1
        self.canary = Canary(config_name=config_name, share=share, generation=self._latest_generation)
        self._canary_failed = ""
        self._events.add(self.entry.name, self.canary.announcement(len(self.ready())))

    def promote(self) -> None:
        """Let the control go, and update the others to the configuration of the canary."""
        canary, pair, self.canary = self.canary, self.pair(), None
        assert canary is not None
        pair[CANARY].role = ""
        self._leave(pair[CONTROL], "its canary is promoted")
        self._begin_update(canary.generation, canary.config_name)

    def abandon(self) -> None:
        """Let the canary and its control go."""
        self.canary = None
        for occupant in self.occupants.values():
            if occupant.role and not occupant.leaving:
                self._leave(occupant, ABANDONED[occupant.role])

    def pair(self) -> dict[str, Occupant]:
        """The canary and its control by role, those that serve and stay."""
        return {each.role: each for each in self.occupants.values() if each.role and each.ready_at and not each.leaving}

    def _begin_update(self, generation: int, config_name: str | None) -> None:
        self._before = (self._generation, self.config_name)
        self._generation, self.config_name = generation, config_name
        self.is_updating, self._update, self._failed_update = True, "", 0
        self.pace.try_again()
        self._events.add(self.entry.name, f"update to {self.config_name or 'config.pbtxt'} begins")

    def ready(self) -> list[Occupant]:
        """The ordinary replicas that serve and stay."""
        return [each for each in self.occupants.values() if each.ready_at and not each.leaving and not each.role]

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The replicas as the door sees them; the canary and its control when both are ready."""
        weight = self.canary.weight(len(self.ready())) if self.canary else ORDINARY
        waits = [*self.pair().values()] if len(self.pair()) < 2 else []
        shown = [each for each in self.occupants.values() if each not in waits]
        found = [each.endpoint(weight if each.role else ORDINARY) for each in shown]
        return tuple(endpoint for endpoint in found if endpoint)

    def routed(self) -> None:
        """The door has taken `endpoints`."""
        for occupant in self.occupants.values():
            if occupant.leaving and occupant.out_at is None:
                occupant.out_at = time.monotonic()
            if occupant.done_at and not occupant.stopping:
                self._stop(occupant)

    def status(self) -> DeploymentStatus:
        """The deployment, for `status`."""
        return DeploymentStatus(
            name=self.entry.name,
            models=self.entry.models,
            config_name=self.config_name,
            desired=self.desired,
            ready=sum(not each.is_unready for each in self.ready()),
            deaths=self.deaths,
            drained=self.drained,
            gave_up=self.pace.gave_up,
            updating=self.is_updating,
            update=self._update,
            scales=self.entry.scaling is not None,
            canary=self.canary.file if self.canary else None,
            canary_share=self.canary.gets(len(self.ready())) if self.canary else 0.0,
            canary_failed=self._canary_failed,
        )

    def _reconcile(self) -> None:
        stay = [each for each in self.occupants.values() if not each.leaving and not each.role]
        step = reconcile.step([each.member(self._generation) for each in stay], self.desired)
        if self.pace.may_start():
            for _ in range(step.start):
                self._start(self._generation, self.config_name)
        for name in step.drain:
            is_current = self.occupants[name].generation == self._generation
            self._leave(self.occupants[name], "not needed any more" if is_current else "replaced by the update")

    def _keep_canary(self) -> None:
        """Start the canary and its control, again after a start that failed."""
        if not self.canary:
            return
        there = {each.role for each in self.occupants.values() if not each.leaving}
        if CANARY not in there:
            self._start(self.canary.generation, self.canary.config_name, CANARY)
        if CONTROL not in there:
            self._start(self._generation, self.config_name, CONTROL)

    def _fail_canary(self, why: str) -> None:
        assert self.canary is not None
        self._canary_failed = f"the canary with {self.canary.file} is abandoned: {why}"
        self._events.add(self.entry.name, self._canary_failed)
        self.abandon()

    def _start(self, generation: int, config_name: str | None, role: str = "") -> None:
        self._number += 1
        replica = plan_check.replica(self.entry, self._number, config_name, self._repository)
        self.occupants[replica.name] = Occupant(replica=replica, number=self._number, generation=generation, role=role)
        self._engine.start(replica)
        self._events.add(replica.name, f"starts as the {role}" if role else "starts")

    def _welcome(self, occupant: Occupant) -> None:
        occupant.begin(occupant.state)
        if not occupant.role:
            self.pace.begin()
        took_s, state = time.monotonic() - occupant.started_at, occupant.state
        ports = f"HTTP {state.http_port}, gRPC {state.grpc_port}, metrics {state.metrics_port}"
        self._events.add(occupant.name, f"ready after {took_s:.1f} s on {state.node} ({ports})")

    def _leave(self, occupant: Occupant, why: str) -> None:
        occupant.leave(why)
        if occupant.ready_at:
            self._events.add(occupant.name, f"{why}: it gets no new requests and answers those that it has")

    def _note_drained(self, occupant: Occupant, in_flight: int) -> None:
        took_s = time.monotonic() - occupant.leaves_at
        is_late = took_s > self._limits.drain_s
        if not (is_late or occupant.is_drained(in_flight)):
            return
        if is_late:
            self._events.add(occupant.name, f"stopped with {in_flight} requests after {took_s:.0f} s (drain_s)")
        elif occupant.ready_at:
            self._events.add(occupant.name, f"has answered all its requests after {took_s:.1f} s and stops")
        occupant.done_at = time.monotonic()

    def _stop(self, occupant: Occupant) -> None:
        occupant.stopping = True
        self._engine.stop(occupant.name)

    def _replace(self, occupant: Occupant, why: str) -> None:
        """Give up a replica that has not ended."""
        self.deaths += 1
        occupant.is_lost = True
        if occupant.role:
            self._fail_canary(f"{occupant.name} (the {occupant.role}): {why}")
            return
        self._events.add(occupant.name, f"{why}{self.pace.die()}")
        occupant.leave(why)

    def _end(self, occupant: Occupant) -> None:
        del self.occupants[occupant.name]
        self._engine.forget(occupant.name, keeps_log=occupant.is_lost)
        occupant.end()
        if not occupant.leaving:
            self._mourn(occupant)
            return
        if not occupant.is_lost:  # else it was counted when it was given up
            self.deaths += bool(occupant.state.problem)
            self.drained += not (occupant.state.problem or occupant.role)
        self._events.add(occupant.name, occupant.farewell())

    def _mourn(self, occupant: Occupant) -> None:
        """Note a death, and when the next start may be."""
        self.deaths += 1
        first, details = occupant.death()
        text = f"{occupant.fate}: {first}{'' if occupant.role else self.pace.die()}"
        self._events.add(occupant.name, f"{text}\n{details}" if details else text)
        if occupant.role:
            if self.canary and (self.canary.is_over(occupant.role) or occupant.ready_at):
                self._fail_canary(f"{occupant.name} (the {occupant.role}) {occupant.fate}: {first}")
            return
        if occupant.ready_at is None:
            self.pace.fail(first)
        if self._before and occupant.generation == self._generation:
            self._failed_update += 1
            if self._failed_update >= MOST_FAILED_UPDATE:
                self._go_back(first)
        if why := self.pace.gave_up:
            command = "update" if self.entry.scaling else "scale"
            self._events.add(self.entry.name, f"no more replicas are started: {why} `{command}` tries again.")

    def _go_back(self, why: str) -> None:
        assert self._before is not None
        refused = self.config_name or "config.pbtxt"
        self._generation, self.config_name = self._before
        self._before = None
        self._update = f"went back to {self.config_name or 'config.pbtxt'}, because {refused} failed: {why}"
        self._events.add(self.entry.name, self._update)
        self.pace.try_again()

    def _finish_update(self) -> None:
        """End the update when every replica has the configuration."""
        stay = [each for each in self.occupants.values() if not each.leaving]
        done = len(stay) == self.desired and all(each.ready_at for each in stay)
        if self.is_updating and done and all(each.generation == self._generation for each in stay):
            self.is_updating, self._before = False, None
            if not self._update:
                self._update = f"done: {len(stay)} replicas with {self.config_name or 'config.pbtxt'}"
                self._events.add(self.entry.name, f"update {self._update}")
