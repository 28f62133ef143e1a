"""The loop that keeps a cluster as it is wanted: replicas, the front door's endpoints, commands and scaling."""

import contextlib
import dataclasses
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from serve.cluster import targets
from serve.cluster.autoscaler import Autoscaler
from serve.cluster.commands import Commands
from serve.cluster.control import Answer, Call, Command
from serve.cluster.engine import Engine
from serve.cluster.events import Events
from serve.cluster.group import NO_TRAFFIC, Group
from serve.cluster.occupant import Occupant
from serve.cluster.plan import Plan
from serve.cluster.state import Remembered
from serve.cluster.status import ReplicaStatus, Status
from serve.front.door import Endpoint, FrontDoor, Traffic
from serve.front.envoy import Envoy
from triton_batching.terminal import Failure, Mistake

TICK_S = 0.1
# The proxy is asked for its counts this often; while a replica drains, in each tick.
TRAFFIC_S = 0.5
# How long requests in flight have when the cluster ends.
CLOSE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a cluster is made of: a checked plan, its front door, and what each deployment starts with."""

    plan: Plan
    name: str
    engine: str
    door: FrontDoor
    metrics_port: int | None
    starts: Mapping[str, Remembered]


class Controller:
    """One cluster: `run` keeps it until it is told to end.

    remember: writes what the next `up` continues with. publish: writes the targets of Prometheus. ready: called once,
        when every deployment has its replicas.
    """

    def __init__(
        self,
        setup: Setup,
        engine: Engine,
        proxy: Envoy,
        events: Events,
        *,
        remember: Callable[[Mapping[str, Remembered]], None],
        publish: Callable[[str], object],
        ready: Callable[[], None],
    ) -> None:
        self.calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._setup, self._plan = setup, setup.plan
        self._engine, self._proxy, self._events = engine, proxy, events
        self._remember, self._publish, self._announce = remember, publish, ready
        new = partial(Group, engine=engine, events=events, limits=self._plan.limits, repository=self._plan.repository)
        self.groups = {
            deployment.name: new(deployment, setup.starts[deployment.name]) for deployment in self._plan.deployment
        }
        self._scalers = {
            name: Autoscaler(group.entry.scaling) for name, group in self.groups.items() if group.entry.scaling
        }
        self._routed: Mapping[str, tuple[Endpoint, ...]] = {}
        self._remembered: Mapping[str, Remembered] = {}
        self._targets = ""
        self._traffic: Mapping[str, Traffic] = {}
        self._traffic_at = 0.0
        self._is_ready = False
        self._commands = Commands(self._plan, setup.door.pools, self.groups, engine, events)

    def run(self) -> None:
        """Keep the cluster until `down`; raises `Failure` if a deployment cannot start its first replicas."""
        while not self._commands.ends:
            self._tick()
            until = time.monotonic() + TICK_S
            while (left_s := until - time.monotonic()) > 0 and not self._commands.ends:
                try:
                    call = self.calls.get(timeout=left_s)
                except queue.Empty:
                    break
                call.answer(self._answer(call.command))

    def close(self) -> None:
        """Let the replicas answer what they have, and make the door forget them, so that they stop soon."""
        draining = {
            name: [dataclasses.replace(endpoint, is_draining=True) for endpoint in endpoints]
            for name, endpoints in self._routed.items()
        }
        with contextlib.suppress(Failure, OSError):
            self._proxy.route(draining)
            until = time.monotonic() + CLOSE_S
            while any(replica.in_flight for replica in self._proxy.traffic().values()) and time.monotonic() < until:
                time.sleep(TICK_S)
            self._proxy.route(dict.fromkeys(self._routed, ()))

    def status(self) -> Status:
        """How the cluster is."""
        return Status(
            name=self._setup.name,
            engine=self._setup.engine,
            host=self._setup.door.host,
            http_port=self._setup.door.http_port,
            grpc_port=self._setup.door.grpc_port,
            metrics_port=self._setup.metrics_port,
            is_ready=self._is_ready,
            proxy_restarts=self._proxy.restarts,
            deployments=tuple(group.status() for group in self.groups.values()),
            replicas=tuple(map(self._replica, self._occupants())),
            events=self._events.last(),
        )

    def _tick(self) -> None:
        self._look_at_traffic()
        states = self._engine.states()
        for group in self.groups.values():
            group.tick(states, self._traffic)
        self._route()
        self._scale()
        self._keep()
        self._note_readiness()

    def _look_at_traffic(self) -> None:
        drains = any(occupant.leaving for occupant in self._occupants())
        now = time.monotonic()
        if not drains and now - self._traffic_at < TRAFFIC_S:
            return
        self._traffic, self._traffic_at = self._proxy.traffic(), now
        for name, scaler in self._scalers.items():
            ready = [occupant.name for occupant in self.groups[name].ready()]
            if ready and self._traffic:
                in_flight = [self._traffic.get(replica, NO_TRAFFIC).in_flight for replica in ready]
                scaler.sample(sum(in_flight) / len(ready))

    def _route(self) -> None:
        endpoints = {name: group.endpoints() for name, group in self.groups.items()}
        if endpoints != self._routed:
            try:
                self._proxy.route(endpoints)
            except (Failure, OSError) as error:  # a full disk, too; it is told again in the next tick
                self._events.add("envoy", str(error))
                return
            self._routed = endpoints
            for group in self.groups.values():
                group.routed()

    def _scale(self) -> None:
        for name, scaler in self._scalers.items():
            group = self.groups[name]
            wanted, why = scaler.decide(group.desired, len(group.ready()))
            if why:
                self._events.add(name, f"scales {why}")
                group.desired = wanted

    def _keep(self) -> None:
        remembered = {name: group.remembered() for name, group in self.groups.items()}
        targets_now = targets.text(self._occupants(), self._plan.metrics_host, self._setup.metrics_port)
        try:
            if remembered != self._remembered:
                self._remembered = remembered
                self._remember(remembered)
            if targets_now != self._targets:
                self._targets = targets_now
                self._publish(targets_now)
        except Mistake as mistake:  # a full disk must not end what serves
            self._events.add(self._setup.name, f"its files are old: {mistake}")

    def _note_readiness(self) -> None:
        if self._is_ready:
            return
        for name, group in self.groups.items():
            if group.pace.gave_up:
                raise Failure(f"deployment {name}: {group.pace.gave_up}")
        if all(len(group.ready()) >= group.desired for group in self.groups.values()):
            self._is_ready = True
            self._announce()

    def _answer(self, command: Command) -> Answer:
        try:
            text = self._commands.do(command)
        except Mistake as mistake:
            return Answer(mistake=str(mistake))
        return Answer(text=text, status=self.status())

    def _occupants(self) -> list[Occupant]:
        return [occupant for group in self.groups.values() for occupant in group.occupants.values()]

    def _replica(self, occupant: Occupant) -> ReplicaStatus:
        state, traffic = occupant.state, self._traffic.get(occupant.name, NO_TRAFFIC)
        return ReplicaStatus(
            name=occupant.name,
            deployment=occupant.replica.deployment,
            node=state.node,
            phase=occupant.phase,
            config_name=occupant.replica.settings.config_name,
            models=occupant.replica.settings.models,
            host=state.host,
            http_port=state.http_port,
            grpc_port=state.grpc_port,
            metrics_port=state.metrics_port,
            pid=state.pid,
            server_pid=state.server_pid,
            age_s=time.monotonic() - occupant.started_at,
            in_flight=traffic.in_flight,
            requests=traffic.requests,
            failures=traffic.failures,
            role=occupant.role,
        )
