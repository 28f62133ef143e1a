"""Why batches do not form on a running server: its statistics over some seconds, and its traces if it writes them."""

import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import NO_BATCHES
from perf.simulate.batcher.rules import Rules
from perf.why.change import Change
from perf.why.changes import LARGER, Diagnosis, diagnose
from perf.why.cores import Cores, changes, sentence, watching
from perf.why.recording import HOW, Recording, recording
from perf.why.report import FULL, as_dict, show
from perf.why.service import counted as of_counted
from perf.why.slowest import as_milliseconds, slowest, table_of
from serve.management import api, loaded
from serve.management.statistics import Counters
from triton_batching.terminal import Mistake

STEP_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a model did on a server at `url` for some seconds.

    `replayed` is the replay of its traced requests, None if there are none. `fuller` are the changes that could use
    idle `cores`.
    """

    url: str
    config: ModelConfig
    seconds: float
    counted: Counters
    cores: Cores
    traced: Recording
    replayed: Diagnosis | None
    fuller: list[Change]

    def as_dict(self) -> dict[str, object]:
        """The values for JSON."""
        if self.replayed:
            traced = {"replayed": len(self.traced.requests), "clients": self.traced.clients}
            cause: dict[str, object] = {**traced, **as_dict(self.replayed)}
        else:
            cause = {"not_known": self.traced.missing, "hint": _hint(Rules.of(self.config), self.counted)}
        slow = slowest(self.traced.spans)
        shown = {"slowest": [as_milliseconds(trace) for trace in slow]} if slow else {}
        cores = {**vars(self.cores), "idle": self.cores.idle, "changes": [change.text for change in self.fuller]}
        return {"counted": _counted(self.counted), "cores": cores, **cause, **shown}

    def show(self, console: Console) -> None:
        """Print the whole answer."""
        _show_counted(console, self.url, self.config.name, self.counted, self.seconds)
        if self.replayed is None:
            console.print(f"Which rule closed the batches is not known: {self.traced.missing}", markup=False)
            console.print(_hint(Rules.of(self.config), self.counted), markup=False, style="bold")
        else:
            _show_replayed(console, self.replayed, self.traced, self.counted)
        if self.fuller:
            console.print(sentence(self.fuller, self.counted, self.cores), markup=False, style="bold")
        if slow := slowest(self.traced.spans):
            console.print(table_of(slow))


def watch(address: str, model: str, *, seconds: float, quiet: bool) -> Watched:
    """Watch `model` on the server at `address` (HTTP); raises `Mistake` if it executes nothing."""
    url = api.base(address)
    config = loaded.config(url, model)
    rules = Rules.of(config)
    with recording(url, model, batched=config.max_batch_size > 0) as traced, watching(url) as cores:
        before = Counters.read(url, model)
        _wait(seconds, quiet=quiet)
        counted = Counters.read(url, model) - before
    if not counted.executions:
        raise Mistake(
            f"{url}: no request to '{model}' was executed in {seconds:g} s, so there is nothing to explain. Send load "
            "meanwhile, or watch longer (--seconds)."
        )
    if traced.spans and (counted.rows != counted.requests or rules.equal_shape):
        traced.requests.clear()
        traced.missing = f"OpenTelemetry's spans hold no rows and shapes, and the requests differ in them. {HOW}"
    return Watched(
        url=url,
        config=config,
        seconds=seconds,
        counted=counted,
        cores=cores,
        traced=traced,
        replayed=_replayed(config, rules, counted, traced) if traced.requests else None,
        fuller=changes(config, rules, counted, cores, seconds),
    )


def _wait(seconds: float, *, quiet: bool) -> None:
    steps = range(max(1, round(seconds / STEP_S)))
    hidden = quiet or not sys.stderr.isatty()
    for _ in track(steps, "watching", disable=hidden, transient=True, console=Console(stderr=True)):
        time.sleep(seconds / len(steps))


def _replayed(config: ModelConfig, rules: Rules, counted: Counters, traced: Recording) -> Diagnosis:
    first = len(traced.requests) if traced.clients else None
    # As large as the largest change that is tried.
    service = of_counted(counted, LARGER[-1] * max(1, rules.max_batch_size))
    return diagnose(config, rules, service, lambda: traced.load(rules.delay), first=first)


def _show_counted(console: Console, url: str, model: str, counted: Counters, seconds: float) -> None:
    console.print(
        f"{model} at {url}, {seconds:g} s: {counted.requests} requests, {counted.executions} executions", markup=False
    )
    sizes = ", ".join(f"{count} of {size}" for size, count in counted.batches.items())
    console.print(f"{counted.rows_per_execution:.2f} rows per execution ({sizes})", style="bold", markup=False)
    queue, compute = (counted.per_request_us(ns) / 1e3 for ns in (counted.queue_ns, counted.compute_ns))
    console.print(
        f"each request waited {queue:.1f} ms in the queue and {compute:.1f} ms in its execution", markup=False
    )


def _show_replayed(console: Console, replayed: Diagnosis, traced: Recording, counted: Counters) -> None:
    origin = f"from {traced.clients} clients that wait for answers" if traced.clients else "at their own times"
    title = (
        f"\nreplay of {len(traced.requests)} traced requests, {origin}: {replayed.now.rows_per_execution:.2f} rows per "
        f"execution, the server counted {counted.rows_per_execution:.2f}"
    )
    show(console, replayed, title, service="what the server counted for its size")


def _hint(rules: Rules, counted: Counters) -> str:
    """The likely cause from the statistics alone: they count sizes and times, and no shapes."""
    if not rules.max_batch_size:
        return f"The model has {NO_BATCHES}"
    if not rules.dynamic:
        return "The model has no dynamic_batching, so every request is an execution. Add: dynamic_batching { }."
    mean = counted.rows_per_execution
    largest = max(rules.preferred, default=rules.max_batch_size)
    if max(counted.batches) >= largest and mean > FULL * largest:
        limit = "max_batch_size" if largest == rules.max_batch_size else "the largest preferred_batch_size"
        return f"Batches are full: {limit} is {largest}."
    if counted.queue_ns < counted.compute_ns / 2:
        return (
            f"Requests wait {counted.queue_ns / max(1, counted.compute_ns):.0%} of the time of an execution, so there "
            "is seldom another one to run with. More requests at a time would batch, and each would wait longer."
        )
    if rules.equal_shape:
        return (
            f"Requests wait while small batches run, and {' and '.join(sorted(rules.equal_shape))} must have the same "
            "shape in the whole batch: most likely requests of different shapes follow each other. Compare: "
            "python -m perf.why --mix with your sizes."
        )
    if rules.optional:
        return "Requests wait while small batches run; the set of optional inputs must be the same in the whole batch."
    if not rules.prefetches:
        return (
            "Requests wait while small batches run: a queue policy or priorities turn off prefetch (polls of 500 ms)."
        )
    return f"Requests wait, and batches hold {mean:.1f} of {rules.max_batch_size} rows. {HOW}"


def _counted(counted: Counters) -> dict[str, object]:
    return {**vars(counted), "rows_per_execution": counted.rows_per_execution}
