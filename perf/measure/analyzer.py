"""perf_analyzer: its command line, its output, and its known faults.

- If its windows do not agree within its own limit, it prints no result. So it is set to accept any spread: what
  varies is in the interval over the repeats.
- Its request-rate mode counts latency from the real send (coordinated omission) and does not limit the requests in
  flight. It is used only for Poisson arrivals at a rate that the server can carry, where a light client matters more:
  each thread has so few requests that it gets its answer before the next is due.
- `--request-count` divides by whole polling seconds, so it is not used.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.samples import OPEN_DIM, sample
from perf.records.measurement import SAMPLES_DATA, AnalyzerLoad, AnalyzerResult, AnalyzerWindow
from perf.records.size_mix import drawn
from serve import hidden_arguments
from serve.installation import bundled_libraries, link_plain_names
from serve.management import admin
from triton_batching.terminal import Failure

# perf_analyzer ends after three windows whose spread is within this limit, so always.
ANY_SPREAD_PERCENT = 100_000
WINDOWS = 3
ATTEMPTS = 3
# A window must be at least this many latencies long.
LEAST_LATENCIES = 4
SAMPLES = 16
# Client i of n sends the samples i, i + n, i + 2 n, ... A prime, so that each client sends all of them, and clients
# that once sent the same size do not do so ever after.
SAMPLES_OF_SIZES = 61
# At 1,000 requests per second each thread sends one in 64 ms.
POISSON_THREADS = 64
NEEDED = ["libb64.so.0d", "libcudart.so.12"]

PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec\. (?:\w+ latency|Avg latency): (\d+) usec")
REQUESTS = re.compile(r"Request count: (\d+)")

Arrays = Mapping[str, NDArray[np.generic]]


class AnalyzerError(Failure):
    """perf_analyzer is missing or measured nothing; the text holds the end of its output."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A running server and one model on it; urls are `host:port`. `sizes` are those of the samples that it is sent."""

    model: str
    config: ModelConfig
    http_url: str
    grpc_url: str
    sizes: tuple[int, ...] = ()


def measure(
    endpoint: Endpoint,
    load: AnalyzerLoad,
    *,
    window_ms: int,
    rows: Sequence[Arrays] | None = None,
    poisson_per_s: float | None = None,
) -> tuple[AnalyzerResult, tuple[str, ...]]:
    """Run perf_analyzer for three windows; returns its result, and the command without temporary paths.

    With `poisson_per_s` the load is an open loop of that many requests per second, and `load.concurrency` is ignored.
    With `rows` these rows are sent in turn, each with its own shape, and `load.data` is ignored. A window hardly longer
    than a request shows several times the true throughput, or nothing, so perf_analyzer is run again with longer
    windows, twice at most. Raises `AnalyzerError`.
    """
    for _ in range(ATTEMPTS):
        measured, command, output = _run(endpoint, load, window_ms, rows, poisson_per_s)
        latency_ms = max((window.latency_us / 1e3 for window in measured.windows), default=0.0) if measured else 0.0
        if measured is not None and len(measured.windows) >= WINDOWS and window_ms >= LEAST_LATENCIES * latency_ms:
            return measured, command
        window_ms = max(2 * window_ms, round(1.5 * LEAST_LATENCIES * latency_ms))
    if measured is not None:
        return measured, command
    raise AnalyzerError(f"perf_analyzer measured nothing for '{endpoint.model}':\n{output}")


def _run(
    endpoint: Endpoint, load: AnalyzerLoad, window_ms: int, rows: Sequence[Arrays] | None, poisson_per_s: float | None
) -> tuple[AnalyzerResult | None, tuple[str, ...], str]:
    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        table = Path(folder) / "point.csv"
        arguments = [*_arguments(endpoint, load, Path(folder), window_ms, rows), *_pace(load, poisson_per_s)]
        limit_s = 60 + WINDOWS * 10 * window_ms / 1e3
        output, errors = _answer(endpoint, load, [*arguments, "-f", str(table)], Path(folder), limit_s)
        measured = parse(output, table.read_text() if table.is_file() else "", window_ms)
    command = ("perf_analyzer", *(Path(part).name if folder in part else part for part in arguments))
    return measured, command, "\n".join([*output.splitlines()[-5:], *errors.splitlines()[-5:]])


def _answer(
    endpoint: Endpoint, load: AnalyzerLoad, arguments: list[str], folder: Path, limit_s: float
) -> tuple[str, str]:
    """Standard output and standard error of perf_analyzer."""
    # The admin API that registers shared memory needs the server's secret.
    headers = admin.headers(endpoint.grpc_url) if load.shared_memory else {}
    hidden = {f"HEADER_{number}": f"{name}:{value}" for number, (name, value) in enumerate(headers.items())}
    # Another process hides them: this one may use gRPC, so it must not fork with hooks in Python.
    hide = [sys.executable, "-P", "-m", hidden_arguments.__name__] if hidden else []
    with subprocess.Popen(
        [*hide, str(_binary()), *arguments, *(part for name in hidden for part in ("-H", name))],
        env=_environment(folder / "libraries"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as process:
        try:
            output, errors = process.communicate(json.dumps(hidden) if hidden else "", timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise AnalyzerError(f"perf_analyzer did not end within {limit_s:.0f} s for '{endpoint.model}'.") from error
        finally:
            process.kill()
    if "arguments cannot be hidden" in errors:
        raise AnalyzerError(
            f"shared memory needs the server's secret, which other users could read on perf_analyzer's command line "
            f"({errors.strip()}). Measure without --shared-memory."
        )
    return output, errors


def parse(output: str, table: str, window_ms: int) -> AnalyzerResult | None:
    """The result in the output of perf_analyzer (`-v`) and its CSV (`--verbose-csv`); None without a window.

    Without the CSV (it gave up, or is an older version) the throughput is the median of the windows.
    """
    windows = tuple(
        AnalyzerWindow(throughput_rows_per_s=float(rate), latency_us=float(latency))
        for rate, latency in PASS.findall(output)
    )
    if not windows:
        return None
    rows = list(csv.DictReader(table.splitlines()))
    if not rows:
        return AnalyzerResult(
            window_ms=window_ms,
            windows=windows,
            throughput_rows_per_s=float(np.median([window.throughput_rows_per_s for window in windows])),
        )
    cells = {name: float(value) for name, value in rows[0].items() if value}
    parts = ("Client Send", "Network+Server Send/Recv", "Client Recv")
    server = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")
    requests = REQUESTS.search(output)
    timed = ("request/response", "response wait")
    return AnalyzerResult(
        window_ms=window_ms,
        windows=windows,
        throughput_rows_per_s=cells["Inferences/Second"],
        requests=int(requests[1]) if requests else None,
        # By the client's clock if it is printed. The other parts add up to the mean, because perf_analyzer calls the
        # remainder network, except if a request is answered before its execution ends: Triton charges it the whole.
        mean_us=sum(cells[name] for name in (timed if set(timed) <= set(cells) else (*parts, *server))),
        p50_us=cells["p50 latency"],
        p90_us=cells["p90 latency"],
        p95_us=cells["p95 latency"],
        p99_us=cells["p99 latency"],
        client_send_us=cells["Client Send"],
        network_us=cells["Network+Server Send/Recv"],
        client_receive_us=cells["Client Recv"],
    )


def write_samples(config: ModelConfig, path: Path, *, sizes: tuple[int, ...] = ()) -> Path:
    """Seeded valid inputs as perf_analyzer's JSON: one entry per row, sent in turn. It joins no rows of two sizes."""
    open_dims = drawn(sizes, SAMPLES_OF_SIZES, 0) if sizes else [OPEN_DIM] * SAMPLES
    samples = [sample(config, rows=1, seed=seed, open_dim=size) for seed, size in enumerate(open_dims)]
    entries = [
        {name: array[0] if config.max_batch_size > 0 else array for name, array in inputs.items()} for inputs in samples
    ]
    return write_rows(entries, path)


def write_rows(rows: Sequence[Arrays], path: Path) -> Path:
    """Inputs by name, without a batch axis, as perf_analyzer's JSON: one entry per row, sent in turn."""
    entries = [{name: _entry(array) for name, array in row.items()} for row in rows]
    path.write_text(json.dumps({"data": entries}))
    return path


def _entry(row: NDArray[np.generic]) -> dict[str, object]:
    return {"content": _content(row), "shape": list(row.shape)}


def _content(array: NDArray[np.generic]) -> list[object]:
    if array.dtype == np.object_:
        return [text.decode() for text in array.ravel().tolist()]
    # tolist() keeps a float a float: perf_analyzer rejects `1` for `1.0`.
    return array.ravel().tolist()  # type: ignore[no-any-return]


def _arguments(
    endpoint: Endpoint, load: AnalyzerLoad, folder: Path, window_ms: int, rows: Sequence[Arrays] | None
) -> list[str]:
    url = endpoint.http_url if load.protocol == "http" else endpoint.grpc_url
    data = load.data
    if rows is not None:
        data = str(write_rows(rows, folder / "rows.json"))
    elif load.data.startswith(SAMPLES_DATA):
        data = str(write_samples(endpoint.config, folder / "samples.json", sizes=endpoint.sizes))
    arguments = ["-m", endpoint.model, "-u", url, "-i", load.protocol, "-b", str(load.request_rows)]
    for name, dims in load.shapes:
        arguments += ["--shape", f"{name}:{','.join(map(str, dims))}"]
    if load.shared_memory:
        arguments += [
            "--shared-memory",
            "system",
            "--output-shared-memory-size",
            str(_output_bytes(endpoint, load)),
        ]
    return [
        *arguments,
        *("--input-data", data),
        f"--percentile={load.percentile}",
        *("-p", str(window_ms), "-s", str(ANY_SPREAD_PERCENT), "-v", "--verbose-csv"),
    ]


def _pace(load: AnalyzerLoad, poisson_per_s: float | None) -> list[str]:
    if poisson_per_s is None:
        return ["--concurrency-range", f"{load.concurrency}:{load.concurrency}:1"]
    rate = f"{poisson_per_s:g}:{poisson_per_s:g}:1"
    threads = ["--sync", "--max-threads", str(POISSON_THREADS)]
    return ["--request-rate-range", rate, "--request-distribution", "poisson", *threads]


def _output_bytes(endpoint: Endpoint, load: AnalyzerLoad) -> int:
    widest = max(int(np.prod([max(1, dim) for dim in output.dims])) for output in endpoint.config.output)
    return widest * load.request_rows * 8


def _binary() -> Path:
    bundled = Path(sys.prefix) / "perf_analyzer" / "bin"
    folders = [bundled, *map(Path, os.environ.get("PATH", "").split(":"))]
    for folder in folders:
        if (folder / "perf_analyzer").is_file():
            return folder / "perf_analyzer"
    raise AnalyzerError(f"no perf_analyzer: neither in {bundled} nor on PATH. Run make setup.")


def _environment(folder: Path) -> dict[str, str]:
    # A proxy of the environment must not be used for a server on this machine.
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    libraries = bundled_libraries()
    if libraries is not None:
        links = link_plain_names(libraries, NEEDED, folder)
        environment["LD_LIBRARY_PATH"] = f"{links}:{environment.get('LD_LIBRARY_PATH', '')}"
    return environment
