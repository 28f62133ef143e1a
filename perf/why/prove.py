"""Tries advice on a real server: copies of the model with each change are measured beside the model as it is."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add.command import add
from export.add.deployment import Deployment
from export.graph import onnx_graph
from export.graph.input_values import Array, random_rows, ranges
from export.graph.ragged_feed import draw_items
from export.repository import ONNXRUNTIME, model_file
from perf.load.variant import variant
from perf.measure.analyzer import Endpoint, measure
from perf.records.measurement import AnalyzerLoad
from perf.stats import rounds
from perf.stats.interval import LEVEL
from perf.stats.verdict import verdict
from perf.why.change import Change
from perf.why.changes import WORTH, Diagnosis
from serve.launcher import Server, Settings, launch
from serve.management.statistics import Counters
from triton_batching.terminal import Failure, Mistake

# Each of so many changes has its own share of the error of all verdicts.
ROUNDS, WINDOW_MS, MOST = 4, 400, 3


@dataclass(kw_only=True)
class Tried:
    """A change under measurement, None for the model as it is.

    `predicted` are its rows per execution, None without a prediction. `refused` is why its copy did not load, empty if
    it did.
    """

    change: Change | None
    predicted: float | None = None
    server: Server | None = None
    refused: str = ""
    rates: list[float] = field(default_factory=list)
    rows: float = 0.0
    executions: float = 0.0
    latency_ms: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What is changed."""
        return self.change.text if self.change is not None else "(none)"


@dataclass(frozen=True, kw_only=True)
class ProvedLoad:
    """What is sent: requests of these sizes in turn, from `clients` clients, with `rows` rows each."""

    sizes: Sequence[int]
    clients: int
    rows: int


def gaining(diagnosis: Diagnosis) -> list[Tried]:
    """The changes to the configuration that are expected to gain rows, the best first."""
    effects = sorted(
        (each for each in diagnosis.effects if each.change.config is not None and diagnosis.gain(each) > WORTH),
        key=lambda each: (each is not diagnosis.best, -diagnosis.gain(each)),
    )
    return [Tried(change=each.change, predicted=each.outcome.rows_per_execution) for each in effects]


def prove(
    console: Console, tried: Sequence[Tried], now: float | None, config: ModelConfig, folder: Path, load: ProvedLoad
) -> None:
    """Print what the first changes did on a server, measured in turns with the model as it is; raises `Failure`.

    `now` is the number of rows per execution that is predicted without a change; None if none is.
    """
    if not tried:
        console.print("--prove: no single change to the configuration is expected to help, so none is tried.")
        return
    tried = [Tried(change=None, predicted=now), *tried[:MOST]]
    with contextlib.ExitStack() as stack:
        with console.status("loading copies with each change"):
            for one in tried:
                _load(stack, one, config, folder)
        if tried[0].refused:
            raise Failure(f"{config.name} as it is does not load, so no change can be compared: {tried[0].refused}")
        loaded, values = [one for one in tried if one.server is not None], _values(config, folder, load.sizes)
        with console.status("measuring") as status:
            for number in range(ROUNDS):
                for one in loaded if number % 2 == 0 else loaded[::-1]:
                    status.update(f"measuring: {one.text}, round {number + 1} of {ROUNDS}")
                    _measure(one, config.name, load, values)
    console.print(_table(tried, load))


def _load(stack: contextlib.ExitStack, one: Tried, config: ModelConfig, folder: Path) -> None:
    """Start a server with a copy of the model under one change."""
    changed = config if one.change is None else one.change.config
    assert changed is not None
    try:
        if one.change is not None and one.change.pads:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-batching-why-"))
            changed, folder = _padded(Path(scratch), changed, folder)
        repository = stack.enter_context(variant(changed, folder))
        one.server = stack.enter_context(launch(Settings(models=(config.name,), repository=repository)))
    except (Failure, Mistake) as error:
        one.refused = " ".join(str(error).split())


def _padded(repository: Path, config: ModelConfig, folder: Path) -> tuple[ModelConfig, Path]:
    """The configuration with padding in the server and nothing else changed, and the folder of the proved graph."""
    deployment = Deployment(
        name=config.name,
        source=str(model_file(folder, config)),
        max_batch_size=config.max_batch_size,
        variable_length=True,
    )
    added = add(deployment, repository=repository)
    assert added.padding is not None
    changed = ModelConfig()
    changed.CopyFrom(config)
    changed.backend = ONNXRUNTIME[1]
    del changed.input[:]
    for tensor in config.input:
        if tensor.name in added.sent:
            changed.input.add().CopyFrom(tensor)
            changed.input[-1].allow_ragged_batch = tensor.name in added.ragged
    for key, value in added.padding.parameters.items():
        changed.parameters[key].string_value = value
    return changed, repository / config.name


def _values(config: ModelConfig, folder: Path, sizes: Sequence[int]) -> list[dict[str, Array]] | None:
    """One row for each size, with values that the graph takes; None without sizes."""
    path = model_file(folder, config)
    if not sizes or path.suffix != ".onnx" or config.batch_input:
        return draw_items(config, sizes) if sizes else None
    model = onnx_graph.load(path)
    valid = ranges(model, {}, {})
    return [
        {name: array[0] for name, array in random_rows(model, valid, rows=1, open_dim=size, seed=number).items()}
        for number, size in enumerate(sizes)
    ]


def _measure(one: Tried, name: str, load: ProvedLoad, values: Sequence[Mapping[str, Array]] | None) -> None:
    server = one.server
    assert server is not None
    config = server.configs[name]
    target = Endpoint(model=name, config=config, http_url=server.http_url, grpc_url=server.grpc_url)
    offered = AnalyzerLoad(concurrency=load.clients, request_rows=load.rows, window_ms=WINDOW_MS)
    taken = {tensor.name for tensor in config.input}  # without masks that the backend makes
    rows = [{key: array for key, array in each.items() if key in taken} for each in values] if values else None
    before = Counters.read(server.grpc_url, name)
    measured, _ = measure(target, offered, window_ms=WINDOW_MS, rows=rows)
    counted = Counters.read(server.grpc_url, name) - before
    one.rates.append(measured.throughput_rows_per_s)
    one.rows += counted.rows
    one.executions += counted.executions
    one.latency_ms.append((measured.mean_us or 0.0) / 1e3)


def _table(tried: Sequence[Tried], load: ProvedLoad) -> Table:
    table = Table(
        *("one change", "rows/exec. predicted", "measured", "mean ms", "rows/s", "x as it is"),
        title=f"on a server, {load.clients} clients, {ROUNDS} rounds in turns",
    )
    for one in tried:
        predicted = "-" if one.predicted is None else f"{one.predicted:.2f}"
        table.add_row(one.text, predicted, *_cells(one, tried[0]))
    return table


def _cells(one: Tried, now: Tried) -> Iterator[str]:
    if one.refused:
        yield f"does not load: {one.refused}"
        return
    yield f"{one.rows / max(1.0, one.executions):.2f}"
    yield f"{sum(one.latency_ms) / len(one.latency_ms):.1f}"
    yield f"{sum(one.rates) / len(one.rates):,.0f}"
    if one is not now:
        ratio = rounds.paired(one.rates, now.rates, level=1 - (1 - LEVEL) / MOST)
        yield f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}): {verdict(ratio, more_is_better=True)}"
