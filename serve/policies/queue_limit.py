"""Refuses requests that would wait too long in a model's queue; Triton's scheduler still forms the batches.

Copied beside model.py (serve/policies/README.md), so it imports nothing of this project.

Triton's own queue policies slow normal load: each of them switches prefetching off, and a free instance then waits for
the next request or for a poll of 500 ms. Instead, a few times within the limit, the instance reads from the server's
metrics how many requests wait. It refuses those that cannot be answered within the limit, the oldest first: they have
the least time left, and the requests behind them are answered sooner.

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
"""Readings of the metrics within the limit, and the longest time between two. A reading takes 0.3 ms."""
KEPT = 0.75
"""The share of the limit within which an accepted request must be answered; the rest is the time between readings."""
LEAST = 3
"""Batches that must have run while requests waited before any request is refused."""
KEPT_WEIGHT = 0.95
"""The factor by which each new batch lowers the weight of earlier ones: about the last 20 batches count."""
ANSWER_S = 0.2
"""The longest wait for the metrics; a server with a free core answers within 2 ms."""
GAUGE = "nv_inference_pending_request_count"


class QueueLimit:
    """The limit of one of `instances` instances.

    `pending` returns how many requests of the model wait in Triton's queue, None if unknown. `refused` counts refusals.
    """

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
        """Read the configuration (Triton's JSON).

        None without the parameter or on a server without metrics; raises `ValueError` for an invalid value.
        """
        text = (config.get("parameters") or {}).get(KEY, {}).get("string_value")
        if text is None:
            return None
        limit_s, instances = limit(config["name"], text) / 1e3, _instances(config)
        if (counter := _counter(args, triton)) is None:
            return None
        pending = Pending(args["model_name"], args["model_version"], triton)
        return cls(limit_s=limit_s, instances=instances, pending=pending, triton=triton, refused=counter)

    def apply(
        self,
        requests: Sequence[Any],
        run: Callable[[Sequence[Any]], list[Any]],
        leave: Callable[[Sequence[Any]], object] = lambda requests: None,
    ) -> list[Any]:
        """The answers of `run`, or a refusal for each request; `leave` gets those that are refused."""
        count, now, crowded = len(requests), time.monotonic(), self._crowded
        # An older reading is no longer right: other instances take from the same queue, and clients give up.
        if now - self._looked_s >= self._every_s:
            self._excess = self._look(now)
        if self._excess > 0:
            self._excess -= count
            self._refused(count)
            leave(requests)
            return self._refusals(count)
        started = time.monotonic()
        answers = run(requests)
        # A batch that was formed while no other request waited may be small, so it does not show the capacity.
        if crowded and self._crowded:
            self._learn(count, time.monotonic() - started)
        self._ran.add(count)
        return answers

    def _learn(self, count: int, seconds: float) -> None:
        if count in self._ran:  # the first batch of a size is slow: it allocates memory and chooses kernels
            self._learned += 1
            self._batches = 1 + KEPT_WEIGHT * self._batches
            self._answered = count + KEPT_WEIGHT * self._answered
            self._busy_s = max(seconds, 1e-6) + KEPT_WEIGHT * self._busy_s

    def _look(self, now: float) -> int:
        """This instance's share of the waiting requests, less those that it can answer within the limit."""
        self._looked_s = now
        waiting = self._pending() or 0
        self._crowded = waiting > 0
        if self._learned < LEAST:
            return 0
        batch_s = self._busy_s / self._batches
        # One batch may always wait, also for a slow model.
        accepted = self._answered / self._busy_s * max(KEPT * self._limit_s - batch_s, batch_s)
        return int(waiting / self._instances - accepted)

    def _refusals(self, count: int) -> list[Any]:
        error, response = self._triton.TritonError, self._triton.InferenceResponse
        text = (
            f"{KEY}: refused: more requests wait than can be answered within {self._limit_s * 1e3:g} ms. Send fewer, "
            "or serve more instances."
        )
        # One object for each, because tritonserver crashes if it gets the same response twice.
        return [response(error=error(text, error.UNAVAILABLE)) for _ in range(count)]


class Pending:
    """Reads from the metrics of the server that started this process how many requests of a model wait."""

    def __init__(self, model: str, version: str, triton: Any) -> None:
        self._line = f'{GAUGE}{{model="{model}",version="{version}"}} '
        self._host, self._port = address(_command_line())
        self._connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        self._triton, self._warned = triton, False

    def __call__(self) -> int | None:
        """The number of waiting requests; None, with one warning in the server's log, if the metrics lack it."""
        try:
            self._connection.request("GET", "/metrics")
            text = self._connection.getresponse().read().decode(errors="replace")
            return int(float(text.partition(self._line)[2].partition("\n")[0]))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            if not self._warned:
                self._warned = True
                self._triton.Logger.log_warn(
                    f"{KEY}: http://{self._host}:{self._port}/metrics does not tell how many requests wait ({error}), "
                    "so the queue has no limit until it does. Leave the server's metrics on."
                )
            return None


def limit(model: str, text: str) -> float:
    """The parameter's value in milliseconds; raises `ValueError`."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise ValueError(f"model '{model}' has {KEY} '{text}', which is not a number above 0. Write milliseconds.")


def address(arguments: Sequence[str]) -> tuple[str, int]:
    """Host and port of the metrics of a tritonserver with this command line."""
    flags = {"--metrics-port": "8002", "--metrics-address": "", "--http-address": ""}
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if name in flags:
            flags[name] = value if equals else following
    # For HTTP, Triton wants an IPv6 address with this prefix.
    host = (flags["--metrics-address"] or flags["--http-address"]).removeprefix("ipv6:")
    port = flags["--metrics-port"]
    return "127.0.0.1" if host in ("", "0.0.0.0") else host, int(port) if port.isdecimal() else 8002


def _command_line() -> list[str]:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _instances(config: Mapping[str, Any]) -> int:
    groups = config.get("instance_group") or [{}]
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus") or ())) for group in groups))


def _counter(args: Mapping[str, str], triton: Any) -> Callable[[int], object] | None:
    """A counter of refusals in the server's metrics, because its own statistics count them as answers.

    None without metrics. The port of the metrics may then be another program's, so it must not be read.
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
