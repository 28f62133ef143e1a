"""Replays a request mix and prints why its batches close: what `python -m perf.why` does."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.graph.signature import Signature
from export.repository import ONNXRUNTIME, config_file, model_file, model_folder, read_config
from perf.measure import RESULTS
from perf.records import size_mix
from perf.simulate.batcher.instances import ServiceTime
from perf.simulate.batcher.mix import Mix
from perf.simulate.batcher.request_source import Arrivals, RequestSource
from perf.simulate.batcher.requests_file import read_requests
from perf.simulate.batcher.rules import STRATEGY_FILE, Rules, RulesError, own_strategy
from perf.why import live
from perf.why.change import Change
from perf.why.changes import Diagnosis, diagnose
from perf.why.recorded import Profiled, service_of
from perf.why.report import as_dict, show
from perf.why.service import read_service
from triton_batching.options import refuse_unused
from triton_batching.terminal import Mistake, terminal

DEFAULT_SERVICE, DEFAULT_COUNT, DEFAULT_ROWS, DEFAULT_SECONDS = "10", 200, 1, 10.0


def run(arguments: argparse.Namespace) -> int:
    """Explain the batches of a running server, or of a request mix; returns the exit code."""
    _refuse_unused(arguments)
    return _live(arguments) if arguments.live is not None else _offline(arguments)


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raise `Mistake` for an option that the source of the requests does not read."""
    quiet = arguments.format == "json"
    live = arguments.live is not None
    source = "--live" if live else "--requests" if arguments.requests else None
    of_mix = {name: getattr(arguments, name) for name in ("count", "rows", "concurrency", "per_second")}
    offline = {name: getattr(arguments, name) for name in ("service_ms", "gpus", "config_name", "results")}
    unused = {**of_mix, **(offline if live else {})} if source else {}
    refuse_unused(
        (arguments.seconds is not None and arguments.live is None, "--seconds", "without --live"),
        (arguments.html is not None and quiet, "--html", "with --format json"),
        *((bool(value), f"--{name.replace('_', '-')}", f"with {source}") for name, value in unused.items()),
    )


def _offline(arguments: argparse.Namespace) -> int:
    folder = model_folder(arguments.model, arguments.repository)
    path = config_file(folder, arguments.config_name)
    config = read_config(path)
    config.name = config.name or folder.name
    _refuse_library(folder, config)
    rules = Rules.of(config, gpus=arguments.gpus or 0)
    load, description, first = _load(arguments, config)
    service, duration, assumed = _service(arguments, config)
    quiet = arguments.format == "json"
    diagnosis = diagnose(
        config,
        rules,
        service,
        load,
        gpus=arguments.gpus or 0,
        assumed=assumed,
        first=first,
        graph=_graph(folder, config),
        progress=lambda changes: _with_bar(changes, quiet=quiet),
    )
    if arguments.format == "json":
        print(json.dumps({**as_dict(diagnosis), "service": duration}, indent=2))
        return 0
    console = terminal()
    show(console, diagnosis, f"{path}: {description}", service=duration)
    _page(console, diagnosis, arguments.html, f"{path}: {description}", duration)
    return 0


def _service(arguments: argparse.Namespace, config: ModelConfig) -> tuple[ServiceTime, str, bool]:
    """The time of an execution, its description, and whether it is assumed: neither given nor measured."""
    if arguments.service_ms is not None:
        return read_service(arguments.service_ms), f"{arguments.service_ms} ms", False
    profiled = Profiled(
        config=config,
        config_name=arguments.config_name,
        repository=arguments.repository,
        mix=size_mix.asked(arguments, config),
        folder=arguments.results or RESULTS,
    )
    if (record := profiled.find()) is not None:
        return service_of(record, config.max_batch_size), profiled.text(record), False
    return (
        read_service(DEFAULT_SERVICE),
        f"{DEFAULT_SERVICE} ms whatever its rows (assumed, since there is no profile of this model on this machine; "
        f"measure it: {profiled.command}; or give it: --service-ms 20+0.5)",
        True,
    )


def _page(console: Console, diagnosis: Diagnosis, path: Path | None, title: str, service: str) -> None:
    if path is not None:
        from perf.why.page import write  # Altair, which takes half a second to import

        console.print(f"written: {write(diagnosis, path, title=title, service=service)}", markup=False)


def _with_bar(changes: Sequence[Change], *, quiet: bool) -> Iterable[Change]:
    return track(
        changes,
        "trying changes",
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
        console=Console(stderr=True),
    )


def _load(arguments: argparse.Namespace, config: ModelConfig) -> tuple[Callable[[], RequestSource], str, int | None]:
    """Return what makes the load, its description, and how many of its requests to look at (None: all)."""
    if arguments.requests:
        requests = read_requests(arguments.requests, config)
        return (lambda: Arrivals(requests)), f"{len(requests)} requests of {arguments.requests}", None
    mix = Mix(
        sizes=_sizes(arguments, config),
        count=arguments.count or DEFAULT_COUNT,
        rows=arguments.rows or DEFAULT_ROWS,
        concurrency=arguments.concurrency,
        per_second=arguments.per_second,
    )
    return (lambda: mix.load(config)), str(mix), mix.count if mix.concurrency else None


def _graph(folder: Path, config: ModelConfig) -> Signature | None:
    """The graph of an onnxruntime model; None if it is not exported."""
    path = model_file(folder, config)
    return Signature.of(path) if config.backend in ONNXRUNTIME and path.is_file() else None


def _refuse_library(folder: Path, config: ModelConfig) -> None:
    """Raise `RulesError` for a batching library that Triton finds by its file name."""
    for path in (*folder.glob(STRATEGY_FILE), *folder.glob(f"*/{STRATEGY_FILE}")):
        raise RulesError(own_strategy(config.name, str(path)))


def _sizes(arguments: argparse.Namespace, config: ModelConfig) -> Sequence[int]:
    """The sizes of the mix; empty for a model whose requests all have one."""
    if (mix := size_mix.asked(arguments, config)) is not None:
        return mix.sizes
    if variable := [tensor.name for tensor in config.input if -1 in tensor.dims and not tensor.optional]:
        raise Mistake(
            f'model "{config.name}" takes inputs of different size ({", ".join(variable)}), and the sizes decide '
            "what can run together. Give them in turn (--mix 20,30,40), name a file (--requests FILE) or a running "
            "server (--live http://localhost:8000)."
        )
    return []


def _live_page(console: Console, watched: live.Watched, path: Path) -> None:
    title = f"{watched.config.name} at {watched.url}"
    if watched.replayed is not None:
        title += f": {len(watched.traced.requests)} traced requests"
        _page(console, watched.replayed, path, title, "what the server counted for its size")
        return
    from perf.why.page import write_counted

    sentences = (*watched.figures, watched.unknown)
    written = write_counted(watched.counted, path, title=title, hint=watched.hint, sentences=sentences)
    console.print(f"written: {written}", markup=False)


def _live(arguments: argparse.Namespace) -> int:
    seconds = arguments.seconds or DEFAULT_SECONDS
    watched = live.watch(arguments.live, arguments.model, seconds=seconds, quiet=arguments.format == "json")
    if arguments.format == "json":
        print(json.dumps(watched.as_dict(), indent=2))
        return 0
    console = terminal()
    watched.show(console)
    if arguments.html is not None:
        _live_page(console, watched, arguments.html)
    return 0
