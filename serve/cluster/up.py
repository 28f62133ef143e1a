"""Runs a cluster in the foreground: its replicas, the front door before them, commands and metrics."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from serve.cluster import metrics_page, place, plan_check, state
from serve.cluster.control import Call, Look, listening
from serve.cluster.controller import Controller
from serve.cluster.engine import Engine
from serve.cluster.events import Events
from serve.cluster.local_engine import LocalEngine
from serve.cluster.place import Place
from serve.cluster.plan import Plan
from serve.cluster.probe import address
from serve.cluster.state import Remembered
from serve.front.door import FrontDoor
from serve.front.opening import open_door
from triton_batching.terminal import Mistake, terminal


def up(plan: Plan, where: Place, *, engine: str = "local", fresh: bool = False, remembers: bool = True) -> None:
    """Keep the cluster of this plan until Ctrl-C, SIGTERM or `down`.

    fresh: forget what an earlier `up` was told. remembers: keep for the next `up` what this one is told.
    Raises `Mistake` if the plan cannot be carried out, and `Failure` if the replicas do not start.
    """
    console = terminal()

    def tell(text: str) -> None:
        console.print(text, markup=False)

    with place.taken(where):
        door, metrics_port = plan_check.check(plan, where.name)
        if fresh or not remembers:
            where.state.unlink(missing_ok=True)
        found = state.read(where.state)
        starts = {entry.name: state.start_of(entry, found.get(entry.name)) for entry in plan.deployment}
        if differences := state.differences(plan, starts):
            tell(f"continues with {'; '.join(differences)}. --fresh starts as planned.")
        _keep(plan, where, engine, door, metrics_port, starts, tell, remembers=remembers)


def _keep(
    plan: Plan,
    where: Place,
    engine_name: str,
    door: FrontDoor,
    metrics_port: int | None,
    starts: Mapping[str, Remembered],
    tell: Callable[[str], None],
    *,
    remembers: bool,
) -> None:
    events = Events(tell)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(engine_name, events))
        _check_room(plan, starts, engine, where.name)
        proxy = stack.enter_context(open_door(door, kind=plan.proxy, report=lambda text: events.add(plan.proxy, text)))
        controller = Controller(
            plan,
            name=where.name,
            engine_name=engine_name,
            engine=engine,
            door=door,
            metrics_port=metrics_port,
            proxy=proxy,
            starts=starts,
            events=events,
            remember=lambda found: state.write(where.state, found) if remembers else None,
            ready=lambda: _announce(door, metrics_port, tell),
        )

        def page() -> str:
            call = Call(Look())
            controller.calls.put(call)
            status = call.wait().status
            assert status is not None
            return metrics_page.page(status, proxy.metrics())

        with listening(where.socket, controller.calls), metrics_page.served(door.host, metrics_port, page):
            try:
                controller.run()
            finally:
                controller.close()
    where.state.unlink(missing_ok=True)
    tell("the cluster has ended.")


def _announce(door: FrontDoor, metrics_port: int | None, tell: Callable[[str], None]) -> None:
    metrics = f", metrics {address(door.host, metrics_port)}" if metrics_port is not None else ""
    http, grpc = address(door.host, door.http_port), address(door.host, door.grpc_port)
    tell(f"ready: HTTP {http}, gRPC {grpc}{metrics}. Ctrl-C stops the cluster.")


@contextlib.contextmanager
def _engine(name: str, events: Events) -> Iterator[Engine]:
    """The engine; at the end it has stopped every replica."""
    with contextlib.ExitStack() as stack:
        engine: Engine
        if name == "ray":
            from serve.cluster import ray_session

            stack.enter_context(ray_session.connected())
            from serve.cluster.ray_engine import RayEngine

            engine = RayEngine()
        else:
            logs = Path("build").resolve() / f"cluster-{os.getpid()}"
            stack.callback(_remove_empty, logs)
            engine = LocalEngine(logs=logs, report=events.add)
        stack.callback(engine.close)
        yield engine


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _check_room(plan: Plan, starts: Mapping[str, Remembered], engine: Engine, where: str) -> None:
    """Raise `Mistake` if there is no room for all replicas that the plan may ask for."""
    replicas = [
        plan_check.replica(entry, number, starts[entry.name].config_name, plan.repository)
        for entry in plan.deployment
        for number in range(max(entry.most_replicas, starts[entry.name].replicas))
    ]
    try:
        engine.check(replicas)
    except Mistake as mistake:
        raise Mistake(f"{where}: {mistake}") from mistake
