"""Runs a cluster in the foreground: its replicas, the front door before them, commands and metrics."""

import contextlib
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from serve.cluster import metrics_page, place, plan_check, state
from serve.cluster.control import Call, Look, listening
from serve.cluster.controller import Controller, Setup
from serve.cluster.engine import Engine
from serve.cluster.events import Events
from serve.cluster.local_engine import LocalEngine
from serve.cluster.place import Place
from serve.cluster.plan import Plan
from serve.cluster.probe import address
from serve.cluster.state import Remembered
from serve.cluster.status import NOBODY
from serve.exporter.endpoint import serving
from serve.front.envoy import Envoy, open_door
from serve.management.api import ServerError
from triton_batching import whole_file
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
        remembered = {} if fresh or not remembers else state.read(where.state)
        starts = {
            deployment.name: state.start_of(deployment, remembered.get(deployment.name))
            for deployment in plan.deployment
        }
        if differences := state.differences(plan, starts):
            tell(f"continues with {'; '.join(differences)}. --fresh starts as planned.")
        door, metrics_port = plan_check.check(state.continued(plan, starts), where.name)
        if not remembered:
            where.state.unlink(missing_ok=True)
        setup = Setup(plan=plan, name=where.name, engine=engine, door=door, metrics_port=metrics_port, starts=starts)
        remember = partial(state.write, where.state) if remembers else _forget
        publish = partial(whole_file.write, where.targets)
        with _controller(setup, tell, remember, publish) as running, listening(where.socket, running.calls):
            running.run()
        where.state.unlink(missing_ok=True)
        tell("the cluster has ended.")


def _forget(_: Mapping[str, Remembered]) -> None:
    """Keep nothing for the next `up`."""


@contextlib.contextmanager
def _controller(
    setup: Setup,
    tell: Callable[[str], None],
    remember: Callable[[Mapping[str, Remembered]], None],
    publish: Callable[[str], object],
) -> Iterator[Controller]:
    """The cluster's engine, front door and metrics, and what keeps them; at the end all have ended."""
    events = Events(tell)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(setup.engine, events))
        _check_room(setup, engine)
        proxy = stack.enter_context(open_door(setup.door, report=partial(events.add, "envoy")))
        ready = partial(_announce, setup, tell)
        controller = Controller(setup, engine, proxy, events, remember=remember, publish=publish, ready=ready)
        stack.callback(controller.close)
        if setup.metrics_port is not None:
            page = partial(_page, controller, proxy)
            stack.enter_context(serving(setup.plan.metrics_host, setup.metrics_port, page))
        yield controller


def _page(controller: Controller, proxy: Envoy) -> str:
    """The metrics of the cluster; the controller's own thread says how it is. Raises `ServerError` if it does not."""
    call = Call(Look())
    controller.calls.put(call)
    try:
        status = call.wait().status
    except queue.Empty as error:
        raise ServerError("the cluster does not answer") from error
    assert status is not None
    return metrics_page.page(status, proxy.metrics())


def _announce(setup: Setup, tell: Callable[[str], None]) -> None:
    door = setup.door
    metrics = "" if setup.metrics_port is None else f", metrics {address(setup.plan.metrics_host, setup.metrics_port)}"
    http, grpc = address(door.host, door.http_port), address(door.host, door.grpc_port)
    empty = [name for name, start in setup.starts.items() if not start.replicas]
    tell(f"{'open, but not ready' if empty else 'ready'}: HTTP {http}, gRPC {grpc}{metrics}. Ctrl-C stops the cluster.")
    for name in empty:
        tell(f"{name} has 0 replicas; {NOBODY}: python -m serve.cluster scale {name} 1")


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


def _check_room(setup: Setup, engine: Engine) -> None:
    """Raise `Mistake` if there is no room for all replicas that the plan may ask for."""
    replicas = [
        plan_check.replica(deployment, number, setup.starts[deployment.name].config_name, setup.plan.repository)
        for deployment in setup.plan.deployment
        for number in range(max(deployment.most_replicas, setup.starts[deployment.name].replicas))
    ]
    try:
        engine.check(replicas)
    except Mistake as mistake:
        raise Mistake(f"{setup.name}: {mistake}") from mistake
