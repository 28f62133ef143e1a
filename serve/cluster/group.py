"""The replicas of one deployment: started, replaced after their death, drained, and renewed one by one."""

import time
from collections.abc import Mapping
from pathlib import Path

from serve.cluster import plan_check, reconcile
from serve.cluster.engine import Engine, Phase, Replica, ReplicaState
from serve.cluster.events import Events
from serve.cluster.occupant import Occupant
from serve.cluster.plan import Deployment, Limits
from serve.cluster.reconcile import Member
from serve.cluster.state import Remembered
from serve.cluster.status import DeploymentStatus
from serve.front.door import Endpoint
from serve.front.proxy import Traffic

# The first death is answered at once; each further one within the window doubles the wait.
FIRST_WAIT_S, LONGEST_WAIT_S, WINDOW_S = 0.5, 15.0, 60.0
# This many starts that fail in a row end the starting; in an update they end the update.
MOST_FAILED, MOST_FAILED_UPDATE = 3, 2
# A replica without requests is stopped after this time even if the door was not told to forget it.
FORGET_S = 5.0
REASON = "reason: "
NO_TRAFFIC = Traffic(in_flight=0, requests=0, failures=0)


class Group:
    """A deployment and its replicas by name; `tick` does what there is to do and does not block."""

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
        self._is_updating, self._update, self._failed_update = False, "", 0
        self._failed, self._wait_until, self._gave_up = 0, 0.0, ""
        self._death_times: list[float] = []
        self.deaths = self.drained = 0

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
            elif occupant.state.problem and not occupant.leaving and len(self.ready()) > 1:
                self._replace(occupant, occupant.state.problem)
            elif occupant.is_ending:
                self._replace(occupant, "takes no new connections, as a server does that ends")
            elif occupant.hangs(self._limits.hung_s):
                self._replace(occupant, f"hangs: not ready for {self._limits.hung_s:g} s")
                occupant.done_at = time.monotonic()
        self._reconcile()
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
        """Have this number of replicas."""
        self.desired = replicas
        self._try_again()

    def drain(self, name: str) -> None:
        """Let a replica leave; another one takes its place."""
        self._leave(self.occupants[name], "drained by command")

    def update(self, config_name: str | None) -> None:
        """Replace the replicas one by one, with this configuration."""
        self._before = (self._generation, self.config_name)
        self._latest_generation += 1
        self._generation, self.config_name = self._latest_generation, config_name
        self._is_updating, self._update, self._failed_update = True, "", 0
        self._try_again()
        self._events.add(self.entry.name, f"update to {self.config_name or 'config.pbtxt'} begins")

    @property
    def is_updating(self) -> bool:
        """Whether replicas are being replaced by those of another configuration."""
        return self._is_updating

    @property
    def gave_up(self) -> str:
        """Why no more replicas are started; "" if they are."""
        return self._gave_up

    def ready(self) -> list[Occupant]:
        """The replicas that serve and stay."""
        return [each for each in self.occupants.values() if each.ready_at and not each.leaving]

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The replicas as the door sees them."""
        return tuple(endpoint for each in self.occupants.values() if (endpoint := each.endpoint()))

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
            gave_up=self._gave_up,
            updating=self._is_updating,
            update=self._update,
            scales=self.entry.scaling is not None,
        )

    def _reconcile(self) -> None:
        members = [
            Member(
                name=each.name,
                number=each.number,
                is_current=each.generation == self._generation,
                is_ready=each.ready_at is not None,
            )
            for each in self.occupants.values()
            if not each.leaving
        ]
        step = reconcile.step(members, self.desired)
        if time.monotonic() >= self._wait_until and not self._gave_up:
            for _ in range(step.start):
                self._start()
        for name in step.drain:
            is_current = self.occupants[name].generation == self._generation
            self._leave(self.occupants[name], "not needed any more" if is_current else "replaced by the update")

    def _start(self) -> None:
        self._number += 1
        replica = self.replica(self._number)
        self.occupants[replica.name] = Occupant(replica=replica, number=self._number, generation=self._generation)
        self._engine.start(replica)
        self._events.add(replica.name, "starts")

    def _welcome(self, occupant: Occupant) -> None:
        occupant.begin(occupant.state)
        self._failed = 0
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
        self._events.add(occupant.name, f"{why}{self._delay()}")
        occupant.leave(why)

    def _end(self, occupant: Occupant) -> None:
        del self.occupants[occupant.name]
        self._engine.forget(occupant.name)
        occupant.end()
        if occupant.leaving:
            self.drained += 1
            self._events.add(occupant.name, f"stopped ({occupant.leaving})")
            return
        self._mourn(occupant)

    def _mourn(self, occupant: Occupant) -> None:
        """Note a death, and when the next start may be."""
        was_ready, problem = occupant.ready_at is not None, occupant.state.problem or "it ended"
        first, _, details = problem.partition("\n")
        first = first.rstrip(".")
        # What the log of a server that did not start says (serve/failure_log.py).
        if details.startswith(REASON):
            reason, _, details = details.partition("\n")
            first = f"{first} ({reason.removeprefix(REASON)})"
        text = f"{'died' if was_ready else 'did not start'}: {first}{self._delay()}"
        self._events.add(occupant.name, f"{text}\n{details}" if details else text)
        self._failed += not was_ready
        if self._before and occupant.generation == self._generation:
            self._failed_update += 1
            if self._failed_update >= MOST_FAILED_UPDATE:
                self._go_back(first)
        if self._failed >= MOST_FAILED:
            self._gave_up = f"{self._failed} starts failed in a row; the last: {first}."
            self._events.add(self.entry.name, f"no more replicas are started: {self._gave_up} `scale` tries again.")

    def _delay(self) -> str:
        """Count a death, and let the next start wait if there were others lately; says when it is."""
        now = time.monotonic()
        self.deaths += 1
        self._death_times = [*(time_s for time_s in self._death_times if now - time_s < WINDOW_S), now]
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (len(self._death_times) - 2))
        if len(self._death_times) == 1:
            return "; another starts"
        self._wait_until = now + wait_s
        return f"; another starts in {wait_s:g} s"

    def _go_back(self, why: str) -> None:
        assert self._before is not None
        refused = self.config_name or "config.pbtxt"
        self._generation, self.config_name = self._before
        self._before = None
        self._update = f"went back to {self.config_name or 'config.pbtxt'}, because {refused} failed: {why}"
        self._events.add(self.entry.name, self._update)
        self._try_again()

    def _finish_update(self) -> None:
        """End the update when every replica has the configuration."""
        stay = [each for each in self.occupants.values() if not each.leaving]
        done = len(stay) == self.desired and all(each.ready_at for each in stay)
        if self._is_updating and done and all(each.generation == self._generation for each in stay):
            self._is_updating, self._before = False, None
            if not self._update:
                self._update = f"done: {len(stay)} replicas with {self.config_name or 'config.pbtxt'}"
                self._events.add(self.entry.name, f"update {self._update}")

    def _try_again(self) -> None:
        self._failed, self._wait_until, self._gave_up = 0, 0.0, ""
