"""Which share of onnxruntime's speed a served model keeps: clients in a closed loop against onnxruntime alone.

Both run the same batches on the same number of threads, in turn. The batches that the server formed are counted, and
onnxruntime alone is timed at each of their sizes. The clients' inputs are in shared memory.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from export.graph.recipe import digest
from export.graph.samples import sample
from export.repository import config_file, model_file, model_folder, read_config
from perf.load.address import channel_arguments
from perf.records import file
from perf.studies.backend_overhead.full_batches import shared_rows
from perf.studies.experiment import (
    Origin,
    command_line,
    counted_since,
    now,
    onnxruntime_alone,
    origin,
    progress_line,
)
from serve.launcher import Settings, launch
from serve.management import admin
from serve.management.statistics import Counters
from triton_batching.machine import cores
from triton_batching.terminal import guarded, program_parser, terminal

# The configuration that is served.
VARIANT = "dynamic"


@dataclass(frozen=True, kw_only=True)
class ShareRound:
    """One turn of both. `batches` maps rows per execution to executions; times are seconds.

    `wall_s` is from the first request to the last answer, `infer_s` the server's compute infer summed over executions,
    `alone_s` the time of onnxruntime alone for the same batches.
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
        """The same without the time between two executions: clients, network, queue."""
        return self.alone_s / self.infer_s


@dataclass(frozen=True, kw_only=True)
class ShareRecord(Origin):
    """All rounds of one model; digests are SHA-256 of the configuration file and of the model file."""

    KIND: ClassVar[str] = "served_share"
    FORMAT: ClassVar[int] = 1
    model: str
    config_sha256: str
    model_sha256: str
    rounds: tuple[ShareRound, ...]

    @property
    def file_name(self) -> str:
        """The name of the record."""
        return f"{self.model}.served_share.json"


def measure(
    model: str, *, clients: int, requests: int, rounds: int, progress: Callable[[str], None] = lambda _: None
) -> list[ShareRound]:
    """`rounds` turns in which each of `clients` sends `requests` one-row requests."""
    folder = model_folder(model)
    config = read_config(config_file(folder, VARIANT))
    name = config.input[0].name
    row = next(iter(sample(config, rows=1, seed=1).values()))
    session = onnxruntime_alone(model_file(folder, config), cores(), spinning=False)
    measured = []
    with (
        launch(Settings(models=(model,), config_name=VARIANT), progress=progress) as server,
        triton.InferenceServerClient(server.grpc_url, channel_args=channel_arguments(server.grpc_url)) as client,
        shared_rows(client, name, np.concatenate([row] * clients), admin.headers(server.grpc_url)) as tensors,
    ):
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}")
            count = requests if number else 1  # the first round only warms up
            before = Counters.read(server.grpc_url, model)
            wall_s = _serve_s(server.grpc_url, model, tensors, count)
            counted = counted_since(before, server.grpc_url, model, requests=clients * count)
            alone_s = sum(executions * _run_s(session, name, row, size) for size, executions in counted.batches.items())
            if number:
                infer_s = sum(counted.batches_ns.values()) / 1e9
                measured.append(ShareRound(batches=counted.batches, wall_s=wall_s, infer_s=infer_s, alone_s=alone_s))
    return measured


def _serve_s(url: str, model: str, tensors: list[triton.InferInput], requests: int) -> float:
    """Seconds that one client for each tensor takes, all together, to send `requests` requests each."""

    def send(tensor: triton.InferInput) -> None:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            for _ in range(requests):
                client.infer(model, [tensor])

    threads = [threading.Thread(target=send, args=(tensor,)) for tensor in tensors]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _run_s(session: Any, name: str, row: NDArray[Any], rows: int, runs: int = 2) -> float:
    """Mean seconds of one run of `rows` rows, after a run to warm up."""
    batch = np.concatenate([row] * rows)
    session.run(None, {name: batch})
    started = time.perf_counter()
    for _ in range(runs):
        session.run(None, {name: batch})
    return (time.perf_counter() - started) / runs


def main(argv: list[str] | None = None) -> int:
    """Measure and print; exit code 2 for a model that cannot be served here, 1 if the server failed."""
    parser = program_parser("python -m perf.studies.served_share", __doc__, example="resnet50 --clients 8")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=10, help="of each client in a round (default 10)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, help="also write a record into this folder")
    arguments = parser.parse_args(argv)
    return guarded(lambda: _run(arguments, command_line("served_share", argv)))


def _run(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    console, started_at, model = terminal(), now(), arguments.model
    with progress_line(model) as progress:
        rounds = measure(
            model,
            clients=arguments.clients,
            requests=arguments.requests,
            rounds=arguments.rounds,
            progress=progress,
        )
    for number, turn in enumerate(rounds, start=1):
        batches = ", ".join(f"{executions} x {rows}" for rows, executions in turn.batches.items())
        console.print(f"round {number}: {_shares([turn])}; executions x rows: {batches}")
    console.print(f"{model}, median of {len(rounds)} rounds: {_shares(rounds)} of onnxruntime alone")
    if arguments.results:
        path = config_file(model_folder(model), VARIANT)
        record = ShareRecord(
            model=model,
            config_sha256=digest(path),
            model_sha256=digest(model_file(model_folder(model), read_config(path))),
            rounds=tuple(rounds),
            **origin(command, started_at),
        )
        console.print(f"record: {file.write(record, arguments.results / record.file_name)}", markup=False)


def _shares(rounds: Sequence[ShareRound]) -> str:
    throughput = statistics.median(turn.throughput_share for turn in rounds)
    execution = statistics.median(turn.execution_share for turn in rounds)
    return f"throughput {throughput:.3f}, execution {execution:.3f}"


if __name__ == "__main__":
    sys.exit(main())
