"""Measures several models of one server at the same time, each with its own load generator."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from perf.load import run
from perf.load.load import Load
from perf.load.result import Result
from perf.load.target import Running, Target
from serve.launcher import Server

Progress = Callable[[str], None]


def measure(server: Server, loads: Mapping[str, Load], progress: Progress) -> dict[str, Result]:
    """Run all loads at the same time; the windows begin together except for the start of processes.

    The expected answers are requested before, model by model. Raises `KeyboardInterrupt` if a run was stopped.
    """
    running = {
        name: Running(url=server.grpc_url, request_url=server.grpc_url, config=server.configs[name], server=server)
        for name in loads
    }

    def tell(text: str, share: float) -> None:
        progress(f"{', '.join(loads)}: {text}")

    pools = {name: run.prepare(Target(model=name), load, running[name], tell) for name, load in loads.items()}
    with ThreadPoolExecutor(len(loads)) as threads:
        futures = {
            name: threads.submit(run.run, Target(model=name), load, running[name], pools[name], tell)
            for name, load in loads.items()
        }
        results = {name: future.result() for name, future in futures.items()}
    if any(result.partial for result in results.values()):
        raise KeyboardInterrupt
    return results
