"""Refuses requests that would wait too long in the queue of a model; the batches stay those of Triton's scheduler.

Carried by folders beside their model.py, so it imports nothing of this project. Triton's own queue policies make normal
load slower: each of them switches prefetching off, and an instance that becomes free then waits for the next request or
for a poll of 500 ms. Instead, while requests come, the instance reads from the server's metrics how many wait, a few
times within the limit. It refuses those that cannot be answered within it, the oldest first: they have the least time
left, and those behind them are answered sooner.

    limit = QueueLimit.of(config, args, pb_utils)  # in initialize; None without the parameter
    return limit.apply(requests, run)  # in execute
"""

import contextlib
import http.client
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

KEY = "queue_limit_ms"
LOOKS, LOOK_S = 4, 0.25
"""Looks within the limit, and the longest time between two, because a refusal waits for one. A look takes 0.3 ms."""
KEPT = 0.75
"""Share of the limit within which a request that is kept must be answered; the rest is the time between two looks."""
LEAST = 3
"""Batches that must have run while requests waited before any request is refused."""
MEMORY = 0.95
"""Weight of the earlier batches when another one has run: some twenty of them say how fast the model is."""
ANSWER_S = 0.2
"""Longest wait for the metrics; they come within 2 ms from a server that has a core for them."""
GAUGE = "nv_inference_pending_request_count"


class QueueLimit:
    """The limit of one of `instances`; `pending` is how many requests of the model wait in Triton's queue, or None."""

    def __init__(
        self,
        *,
        limit_s: float,
        instances: int,
        pending: Callable[[], int | None],
        triton: Any,
        refused: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._limit_s, self._instances, self._pending, self._triton = limit_s, instances, pending, triton
        self._refused, self._every_s = refused, min(LOOK_S, limit_s / LOOKS)
        self._ran = set[int]()
        self._learned, self._batches, self._answered, self._busy_s = 0, 0.0, 0.0, 0.0
        self._crowded, self._looked_s, self._excess = False, 0.0, 0

    @classmethod
    def of(cls, config: Mapping[str, Any], args: Mapping[str, str], triton: Any) -> "QueueLimit | None":
        """As config.pbtxt says (Triton's JSON), None on a server without metrics; raises `ValueError`."""
        text = (config.get("parameters") or {}).get(KEY, {}).get("string_value")
        if text is None:
            return None
        limit_s, instances = limit(config["name"], text) / 1e3, _instances(config)
        if (counted := _counter(args, triton)) is None:
            return None
        pending = Pending(args["model_name"], args["model_version"], triton)
        return cls(limit_s=limit_s, instances=instances, pending=pending, triton=triton, refused=counted)

    def apply(self, requests: Sequence[Any], run: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        """The answers of `run`, or a refusal for each request."""
        count, now, crowded = len(requests), time.monotonic(), self._crowded
        # What an older look found may be gone: other instances take from the same queue, and clients give up.
        if now - self._looked_s >= self._every_s:
            self._excess = self._look(now)
        if self._excess > 0:
            self._excess -= count
            self._refused(count)
            return self._refusals(count)
        started = time.monotonic()
        answers = run(requests)
        # A batch that was formed while none waited may be a small one, and says nothing of what the model can do.
        if crowded and self._crowded:
            self._learn(count, time.monotonic() - started)
        self._ran.add(count)
        return answers

    def _learn(self, count: int, seconds: float) -> None:
        if count in self._ran:  # the first of a size is slow: memory is made, kernels are chosen
            self._learned += 1
            self._batches = 1 + MEMORY * self._batches
            self._answered = count + MEMORY * self._answered
            self._busy_s = max(seconds, 1e-6) + MEMORY * self._busy_s

    def _look(self, now: float) -> int:
        """How many of the waiting requests are too many, at the rate at which this instance answers while some wait."""
        self._looked_s = now
        waiting = self._pending() or 0
        self._crowded = waiting > 0
        if self._learned < LEAST:
            return 0
        batch_s = self._busy_s / self._batches
        # Even of a slow model one batch may always wait.
        kept = self._answered / self._busy_s * max(KEPT * self._limit_s - batch_s, batch_s)
        return int(waiting / self._instances - kept)

    def _refusals(self, count: int) -> list[Any]:
        error, response = self._triton.TritonError, self._triton.InferenceResponse
        text = (
            f"{KEY}: refused: more requests wait than can be answered within {self._limit_s * 1e3:g} ms. Send fewer, "
            "or serve more instances."
        )
        # An object for each: tritonserver ends with a crash when it is given the same response twice.
        return [response(error=error(text, error.UNAVAILABLE)) for _ in range(count)]


class Pending:
    """Asks the metrics of the server that started this process how many requests of a model wait."""

    def __init__(self, model: str, version: str, triton: Any) -> None:
        self._line = f'{GAUGE}{{model="{model}",version="{version}"}} '
        self._host, self._port = address(_command_line())
        self._connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        self._triton, self._told = triton, False

    def __call__(self) -> int | None:
        """None where the metrics do not tell, which is said once in the server's log."""
        try:
            self._connection.request("GET", "/metrics")
            text = self._connection.getresponse().read().decode(errors="replace")
            return int(float(text.partition(self._line)[2].partition("\n")[0]))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            if not self._told:
                self._told = True
                self._triton.Logger.log_warn(
                    f"{KEY}: http://{self._host}:{self._port}/metrics does not tell how many requests wait ({error}), "
                    "so the queue has no limit meanwhile. Leave the server's metrics on."
                )
            return None


def limit(model: str, text: str) -> float:
    """The parameter's milliseconds; raises `ValueError`."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise ValueError(f"model '{model}' has {KEY} '{text}', which is no number above 0. Write milliseconds.")


def address(arguments: Sequence[str]) -> tuple[str, int]:
    """Host and port of the metrics of a tritonserver with this command line."""
    found = {"--metrics-port": "8002", "--metrics-address": "", "--http-address": ""}
    for argument, after in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if name in found:
            found[name] = value if equals else after
    host = found["--metrics-address"] or found["--http-address"]
    port = found["--metrics-port"]
    return "127.0.0.1" if host in ("", "0.0.0.0") else host, int(port) if port.isdecimal() else 8002


def _command_line() -> list[str]:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _instances(config: Mapping[str, Any]) -> int:
    groups = config.get("instance_group") or [{}]
    return max(1, sum(int(one.get("count", 1)) * max(1, len(one.get("gpus") or ())) for one in groups))


def _counter(args: Mapping[str, str], triton: Any) -> Callable[[int], object] | None:
    """Counts refusals in the server's metrics, because its own statistics take them for answers; None without metrics.

    Then nothing may be asked on the port of the metrics either, which may be another program's.
    """
    try:
        family = triton.MetricFamily(
            name="queue_limit_refused_total",
            description="Requests refused because more waited than could be answered within queue_limit_ms",
            kind=triton.MetricFamily.COUNTER,
        )
        labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "instance": args["model_instance_name"],
        }
        metric = family.Metric(labels=labels)
    except triton.TritonModelException as error:
        triton.Logger.log_warn(
            f"the queue of '{args['model_name']}' has no limit, because {KEY} needs metrics: {error}"
        )
        return None

    def count(refused: int, _: Any = family) -> None:  # the family must live as long as its metric
        metric.increment(refused)

    return count
