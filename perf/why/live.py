"""Why batches do not form on a running server: its statistics over some seconds, and its traces if it writes them."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import NO_BATCHES
from perf.simulate.batcher.rules import Rules
from perf.why.changes import LARGER, Diagnosis, diagnose
from perf.why.recording import HOW, Recording, recording
from perf.why.report import FULL, as_dict, show
from perf.why.service import counted as of_counted
from serve.management import api, loaded
from serve.management.statistics import Counters
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a model did on a server at `url` for some seconds.

    `replayed` is the replay of its traced requests, None if there are none.
    """

    url: str
    config: ModelConfig
    seconds: float
    counted: Counters
    traced: Recording
    replayed: Diagnosis | None

    def as_dict(self) -> dict[str, object]:
        """The values for JSON."""
        if self.replayed:
            traced = {"replayed": len(self.traced.requests), "clients": self.traced.clients}
            cause: dict[str, object] = {**traced, **as_dict(self.replayed)}
        else:
            cause = {"not_known": self.traced.missing, "hint": self.hint}
        return {"counted": _counted(self.counted), **cause}

    @property
    def figures(self) -> tuple[str, ...]:
        """What the server counted, in sentences."""
        counted = self.counted
        sizes = ", ".join(f"{count} of {size}" for size, count in counted.batches.items())
        queue, compute = (counted.per_request_us(ns) / 1e3 for ns in (counted.queue_ns, counted.compute_ns))
        return (
            f"{self.config.name} at {self.url}, {self.seconds:g} s: {counted.requests} requests, "
            f"{counted.executions} executions",
            f"{counted.rows_per_execution:.2f} rows per execution ({sizes})",
            f"each request waited {queue:.1f} ms in the queue and {compute:.1f} ms in its execution",
        )

    @property
    def unknown(self) -> str:
        """Why no rule is named, without a replay."""
        return f"Which rule closed the batches is not known: {self.traced.missing}"

    @property
    def hint(self) -> str:
        """The likely cause from the statistics alone."""
        return _hint(Rules.of(self.config), self.counted)

    def show(self, console: Console) -> None:
        """Print the whole answer."""
        for sentence in self.figures:
            console.print(sentence, markup=False)
        if self.replayed is None:
            console.print(self.unknown, markup=False)
            console.print(self.hint, markup=False, style="bold")
        else:
            _show_replayed(console, self.replayed, self.traced, self.counted)


def watch(address: str, model: str, *, seconds: float, quiet: bool) -> Watched:
    """Watch `model` on the server at `address` (HTTP); raises `Mistake` if several answer, or it executes nothing."""
    url = api.base(address)
    config = loaded.config(url, model)
    rules = Rules.of(config)
    with _telling(quiet=quiet) as tell:
        with recording(url, model, batched=config.max_batch_size > 0, tell=tell) as traced:
            tell(f"watching {model} for {seconds:g} s")
            before = Counters.read(url, model)
            time.sleep(seconds)
            counted = Counters.read(url, model) - before
        if counted.fell:
            raise Mistake(
                f"{url}: the counters of '{model}' fell, so several servers answer there, or the model was loaded "
                "again. Name one server: of a cluster the HTTP port of a replica (triton-batching cluster status)."
            )
        if not counted.executions:
            raise Mistake(
                f"{url}: no request to '{model}' was executed in {seconds:g} s, so there is nothing to explain. Send "
                "load meanwhile, or watch longer (--seconds)."
            )
        return Watched(
            url=url,
            config=config,
            seconds=seconds,
            counted=counted,
            traced=traced,
            replayed=_replayed(config, rules, counted, traced, tell) if traced.requests else None,
        )


@contextlib.contextmanager
def _telling(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """What to call with the step that begins: a spinner on a terminal, else a line on standard error for each step."""
    console = Console(stderr=True)
    if quiet:
        yield lambda _: None
    elif not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
    else:
        with console.status("") as status:
            yield status.update


def _replayed(
    config: ModelConfig, rules: Rules, counted: Counters, traced: Recording, tell: Callable[[str], None]
) -> Diagnosis:
    tell(f"replaying {len(traced.requests)} requests, as they were and with each change")
    first = len(traced.requests) if traced.clients else None
    # As large as the largest change that is tried.
    service = of_counted(counted, LARGER[-1] * max(1, rules.max_batch_size))
    return diagnose(config, rules, service, lambda: traced.load(rules.delay), first=first)


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
            "triton-batching why MODEL --mix with your sizes."
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
