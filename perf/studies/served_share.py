"""Which share of onnxruntime's own speed a served model keeps: clients in a closed loop against this process alone.

Both run the same batches on the same number of threads, in turn: the batches that the server formed are counted, and
onnxruntime alone is timed at each of their sizes. The clients' inputs lie in shared memory.
"""

import argparse
import datetime
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tritonclient.grpc as triton
from numpy.typing import NDArray
from rich.progress import Progress

from clients.connection import channel_arguments
from export.graph.recipe import digest
from export.graph.samples import sample
from export.repository import config_file, model_file, model_folder, read_config
from perf.studies.backend_overhead.full_batches import shared_rows
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management import admin
from serve.management.statistics import Counters
from triton_batching import whole_file
from triton_batching.machine import Machine, cores, versions
from triton_batching.terminal import guarded, program_parser, terminal


@dataclass(frozen=True, kw_only=True)
class ShareRound:
    """One turn of both. `batches` maps rows per execution to executions; times are seconds.

    `wall_s` is from the first request to the last answer, `infer_s` the server's compute infer summed over executions,
    `alone_s` what onnxruntime alone took for the same batches.
    """

    batches: Mapping[int, int]
    wall_s: float
    infer_s: float
    alone_s: float

    @property
    def throughput_share(self) -> float:
        """Rows per second served, as a share of onnxruntime alone."""
        return self.alone_s / self.wall_s

    @property
    def execution_share(self) -> float:
        """The same without what lies between two executions: clients, network, queue."""
        return self.alone_s / self.infer_s


def measure(
    model: str, *, clients: int, requests: int, rounds: int, progress: Callable[[str], None] = lambda _: None
) -> list[ShareRound]:
    """`rounds` turns of `clients` that send `requests` one-row requests each; the model's `dynamic` configuration."""
    folder = model_folder(model)
    config = read_config(config_file(folder, "dynamic"))
    name = config.input[0].name
    row = next(iter(sample(config, rows=1, seed=1).values()))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    # As the served session: threads that spin between two runs would take the clients' cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model_file(folder, config)), options, providers=["CPUExecutionProvider"])
    rows = np.concatenate([row] * clients)
    done = []
    with (
        launch(Settings(models=(model,), config_name="dynamic"), progress=progress) as server,
        triton.InferenceServerClient(server.grpc_url, channel_args=channel_arguments(server.grpc_url)) as client,
        shared_rows(client, name, rows, admin.headers(server.grpc_url)) as tensors,
    ):
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}")
            before = Counters.read(server.grpc_url, model)
            wall_s = _serve(server, model, tensors, requests if number else 1)
            counted = _counted(server, model, before, clients * (requests if number else 1))
            alone_s = sum(times * _alone_s(session, name, row, size) for size, times in counted.batches.items())
            if number:  # the first one only warms up
                infer_s = sum(counted.batches_ns.values()) / 1e9
                done.append(ShareRound(batches=counted.batches, wall_s=wall_s, infer_s=infer_s, alone_s=alone_s))
    return done


def _serve(server: Server, model: str, tensors: list[triton.InferInput], requests: int) -> float:
    def one_client(tensor: triton.InferInput) -> None:
        url = server.grpc_url
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            for _ in range(requests):
                client.infer(model, [tensor])

    threads = [threading.Thread(target=one_client, args=(tensor,)) for tensor in tensors]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _counted(server: Server, model: str, before: Counters, requests: int) -> Counters:
    deadline = time.monotonic() + 5
    while (counted := Counters.read(server.grpc_url, model) - before).requests < requests:
        if time.monotonic() > deadline:
            raise LaunchError(f"'{model}' answered {counted.requests} of {requests} requests.")
        time.sleep(0.01)  # the server answers first and counts then
    return counted


def _alone_s(session: onnxruntime.InferenceSession, name: str, row: NDArray[Any], rows: int, runs: int = 2) -> float:
    batch = np.concatenate([row] * rows)
    session.run(None, {name: batch})
    started = time.perf_counter()
    for _ in range(runs):
        session.run(None, {name: batch})
    return (time.perf_counter() - started) / runs


def write(model: str, rounds: list[ShareRound], folder: Path, started_at: str, command: list[str]) -> Path:
    """One record of all rounds."""
    served = model_folder(model)
    config = config_file(served, "dynamic")
    content = {
        "format": 1,
        "kind": "served_share",
        "model": model,
        "config_sha256": digest(config),
        "model_sha256": digest(model_file(served, read_config(config))),
        "machine": asdict(Machine.this()),
        "versions": versions(),
        "started_at": started_at,
        "command": command,
        "rounds": [asdict(round_) for round_ in rounds],
    }
    return whole_file.write(folder / f"{model}.served_share.json", json.dumps(content, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that cannot be served here, 1 when the server failed."""
    parser = program_parser("python -m perf.studies.served_share", __doc__, example="resnet50 --clients 8")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=10, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    command = ["python", "-m", "perf.studies.served_share", *(sys.argv[1:] if argv is None else argv)]
    return guarded(lambda: _report(arguments, command))


def _report(arguments: argparse.Namespace, command: list[str]) -> None:
    console = terminal()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("share", total=None)
        rounds = measure(
            arguments.model,
            clients=arguments.clients,
            requests=arguments.requests,
            rounds=arguments.rounds,
            progress=lambda text: bar.update(task, description=text),
        )
    for round_ in rounds:
        batches = ", ".join(f"{executions} x {rows}" for rows, executions in round_.batches.items())
        console.print(
            f"throughput {round_.throughput_share:.3f}, execution {round_.execution_share:.3f} of onnxruntime alone; "
            f"executions x rows: {batches}"
        )
    console.print(
        f"{arguments.model}, median of {len(rounds)} rounds: "
        f"throughput {statistics.median(round_.throughput_share for round_ in rounds):.3f}, "
        f"execution {statistics.median(round_.execution_share for round_ in rounds):.3f} of onnxruntime alone"
    )
    if arguments.results:
        written = write(arguments.model, rounds, arguments.results, started, command)
        console.print(f"written: {written}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
