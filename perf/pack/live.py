"""Several models of one real server under load at the same time, each by a load generator of its own."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from perf.load import run
from perf.load.load import Load
from perf.load.result import Result
from perf.load.target import Running, Target
from serve.launcher import Server

Told = Callable[[str], None]


def measure(server: Server, loads: Mapping[str, Load], told: Told) -> dict[str, Result]:
    """Every model's load for the length of its window; the windows begin together but for the start of processes.

    The answers that replies are checked against are asked for first, one model after the other. Raises
    `KeyboardInterrupt` where a run was stopped, since a part of a measurement is none.
    """
    running = {
        name: Running(url=server.grpc_url, request_url=server.grpc_url, config=server.configs[name], server=server)
        for name in loads
    }

    def tell(text: str, share: float) -> None:
        told(f"{', '.join(loads)}: {text}")

    pools = {name: run.prepare(Target(model=name), load, running[name], tell) for name, load in loads.items()}
    with ThreadPoolExecutor(len(loads)) as threads:
        going = {
            name: threads.submit(run.run, Target(model=name), load, running[name], pools[name], tell)
            for name, load in loads.items()
        }
        results = {name: one.result() for name, one in going.items()}
    if any(one.partial for one in results.values()):
        raise KeyboardInterrupt
    return results
