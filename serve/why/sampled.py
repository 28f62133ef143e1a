"""The statistics of one model on a running server, over HTTP, and their difference over some seconds."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from export.terminal import Failure, Mistake
from serve.batcher.instances import ServiceTime
from serve.loaded import DIRECT
from serve.why.service import table

PHASES = ("compute_input", "compute_infer", "compute_output")


class ServerError(Failure, Mistake):
    """No server, no such model, or an answer that is no statistics."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Totals since the model was loaded, or the difference of two; `sizes` counts executions by rows.

    `queue_ns` and `compute_ns` are sums over requests, `sizes_ns` sums over executions of each size.
    """

    requests: int
    failed: int
    rows: int
    executions: int
    queue_ns: int
    compute_ns: int
    sizes: Mapping[int, int]
    sizes_ns: Mapping[int, int]

    @classmethod
    def read(cls, url: str, model: str) -> Self:
        """Ask the server at `url` (http://host:port); raises `ServerError`."""
        found = call(f"{url}/v2/models/{model}/stats")["model_stats"]
        return sum((cls._of(one) for one in found[1:]), cls._of(found[0]))

    @classmethod
    def _of(cls, stats: Mapping[str, Any]) -> Self:
        inference = stats["inference_stats"]
        batches = stats.get("batch_stats", [])
        return cls(
            requests=inference["success"]["count"],
            failed=inference["fail"]["count"],
            rows=stats["inference_count"],
            executions=stats["execution_count"],
            queue_ns=inference["queue"]["ns"],
            compute_ns=sum(inference[phase]["ns"] for phase in PHASES),
            sizes={one["batch_size"]: one["compute_infer"]["count"] for one in batches},
            sizes_ns={one["batch_size"]: sum(one[phase]["ns"] for phase in PHASES) for one in batches},
        )

    def __add__(self, other: Self) -> Self:
        return self._combined(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combined(other, -1)

    def _combined(self, other: Self, sign: int) -> Self:
        whole = {
            name: value + sign * getattr(other, name) for name, value in vars(self).items() if isinstance(value, int)
        }
        return type(self)(
            **whole,
            sizes=_merged(self.sizes, other.sizes, sign),
            sizes_ns=_merged(self.sizes_ns, other.sizes_ns, sign),
        )

    @property
    def rows_per_execution(self) -> float:
        """Mean rows that ran together; 0 when nothing ran."""
        return self.rows / self.executions if self.executions else 0.0

    def per_request_ms(self, total_ns: int) -> float:
        """A sum over requests as milliseconds for each."""
        return total_ns / self.requests / 1e6 if self.requests else 0.0

    @property
    def service(self) -> ServiceTime:
        """Mean time of an execution by its rows, as counted."""
        return table({size: self.sizes_ns[size] // count for size, count in self.sizes.items()})


def call(url: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON that the server answers; raises `ServerError` with its words."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with DIRECT.open(urllib.request.Request(url, data=data), timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(
            f"{url}: the server answered {error.code}: {error.read().decode(errors='replace')[:300]}"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(
            f"{url}: no Triton server answers there ({error}). Give its HTTP address (not that of gRPC), for example http://localhost:8000."
        ) from error


def _merged(one: Mapping[int, int], other: Mapping[int, int], sign: int) -> dict[int, int]:
    merged = {size: one.get(size, 0) + sign * other.get(size, 0) for size in sorted({*one, *other})}
    return {size: count for size, count in merged.items() if count}
