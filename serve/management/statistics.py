"""What a server counts for its models: read over gRPC or HTTP, as a value, and the difference of two values.

Triton counts per request for durations (each request is charged the whole execution it was part of), per row for
inferences, and per execution for batch sizes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import grpc
from google.protobuf import json_format
from tritonclient.grpc.service_pb2 import ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse

from serve.management import api
from serve.management.admin import LOOPBACK
from serve.management.api import ServerError

TIMEOUT_S = 30.0
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # Someone who watches a server finds it again at once after a restart; gRPC alone would wait up to 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Totals of a model since it was loaded, or the difference of two such totals.

    `*_ns` are sums over successful requests. `batches` maps the rows of an execution to the number of such executions.
    `batches_ns` maps them to the nanoseconds of all these executions together, `batches_input_ns` and
    `batches_output_ns` to the nanoseconds before and after them (both are empty in old records).
    """

    requests: int
    failed_requests: int
    rows: int
    executions: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batches: Mapping[int, int]
    batches_ns: Mapping[int, int]
    batches_input_ns: Mapping[int, int] = field(default_factory=dict)
    batches_output_ns: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, url: str, model: str) -> Self:
        """Read them from the server at `url` once, as `Statistics` does; raises `ServerError`."""
        with Statistics(url) as server:
            return cls.total(server.versions(model))

    @classmethod
    def of(cls, model: ModelStatistics) -> Self:
        """The counters of one version of a model, from the server's answer."""
        stats = model.inference_stats
        return cls(
            requests=stats.success.count,
            failed_requests=stats.fail.count,
            rows=model.inference_count,
            executions=model.execution_count,
            queue_ns=stats.queue.ns,
            compute_input_ns=stats.compute_input.ns,
            compute_infer_ns=stats.compute_infer.ns,
            compute_output_ns=stats.compute_output.ns,
            batches={batch.batch_size: batch.compute_infer.count for batch in model.batch_stats},
            batches_ns={batch.batch_size: batch.compute_infer.ns for batch in model.batch_stats},
            batches_input_ns={batch.batch_size: batch.compute_input.ns for batch in model.batch_stats},
            batches_output_ns={batch.batch_size: batch.compute_output.ns for batch in model.batch_stats},
        )

    @classmethod
    def total(cls, versions: Sequence[ModelStatistics]) -> Self:
        """The counters of all `versions` of a model together."""
        return sum(map(cls.of, versions), cls.none())

    @classmethod
    def none(cls) -> Self:
        """Counters of a model that has had no request."""
        values: dict[str, Any] = {item.name: 0 if item.type is int else {} for item in fields(cls)}
        return cls(**values)

    def since(self, earlier: Self | None) -> Self:
        """What was counted after `earlier`.

        A server or a model that was started again counts from 0. So if any total is lower than before, all of `self`
        came after `earlier`.
        """
        if earlier is None:
            return self
        counted = self - earlier
        return self if counted.fell else counted

    @property
    def fell(self) -> bool:
        """Whether this is a difference in which a total is lower than before."""
        parts = [[value] if isinstance(value, int) else value.values() for value in vars(self).values()]
        return any(value < 0 for value in itertools.chain(*parts))

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def _combine(self, other: Self, sign: int) -> Self:
        combined: dict[str, Any] = {}
        for name, value in vars(self).items():
            others = getattr(other, name)
            combined[name] = value + sign * others if isinstance(value, int) else _merge(value, others, sign)
        return type(self)(**combined)

    def scaled(self, times: float) -> Self:
        """Each total multiplied and rounded."""
        scaled: dict[str, Any] = {}
        for name, value in vars(self).items():
            is_number = isinstance(value, int)
            scaled[name] = round(times * value) if is_number else {at: round(times * n) for at, n in value.items()}
        return type(self)(**scaled)

    @property
    def rows_per_execution(self) -> float:
        """Mean rows of an execution; 0 without an execution."""
        return self.rows / self.executions if self.executions else 0.0

    def execution_ns(self, rows: int) -> int:
        """Nanoseconds of all executions with this number of rows, from their start to their last answer."""
        return self.computing_ns(rows) + self.batches_output_ns.get(rows, 0)

    def computing_ns(self, rows: int) -> int:
        """Nanoseconds of all executions with this number of rows, until their answers begin to leave."""
        return self.batches_input_ns.get(rows, 0) + self.batches_ns.get(rows, 0)

    @property
    def busy_ns(self) -> int:
        """Nanoseconds of all executions, added up over all instances."""
        return sum(map(self.execution_ns, self.batches))

    @property
    def compute_ns(self) -> int:
        """Nanoseconds of execution added up over requests: each is charged the whole execution that it was part of."""
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns

    def per_request_us(self, total_ns: int) -> float:
        """Microseconds per request, from a sum over requests in nanoseconds; 0 without a request."""
        return total_ns / self.requests / 1e3 if self.requests else 0.0


def _merge(left: Mapping[int, int], right: Mapping[int, int], sign: int) -> dict[int, int]:
    merged = {size: left.get(size, 0) + sign * right.get(size, 0) for size in sorted({*left, *right})}
    return {size: count for size, count in merged.items() if count}


class Statistics:
    """The statistics of a server, read again and again over one connection; a context manager.

    `url` names the endpoint as for a client: `host:port` is gRPC, `http://host:port` is HTTP.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._channel = None if url.startswith("http://") else grpc.insecure_channel(url, options=_options(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._channel is not None:
            self._channel.close()

    def counters(self, model: str) -> Counters:
        """The counters of all versions of `model` together; raises `ServerError`."""
        return Counters.total(self.versions(model))

    def versions(self, model: str = "", *, timeout_s: float = TIMEOUT_S) -> Sequence[ModelStatistics]:
        """The statistics of each version of `model`, or of every model without one; raises `ServerError`."""
        if self._channel is None:
            path = f"models/{model}/stats" if model else "models/stats"
            answer = api.call(self._url, path, timeout_s=timeout_s)
            parsed = json_format.ParseDict(answer, ModelStatisticsResponse(), ignore_unknown_fields=True)
            return list(parsed.model_stats)
        read = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelStatistics",
            request_serializer=ModelStatisticsRequest.SerializeToString,
            response_deserializer=ModelStatisticsResponse.FromString,
        )
        try:
            return list(read(ModelStatisticsRequest(name=model), timeout=timeout_s).model_stats)
        except grpc.RpcError as error:
            name = f" for '{model}'" if model else ""
            raise ServerError(f"{self._url}: no statistics{name}: {error.details()}") from error


def _options(url: str) -> list[tuple[str, int]]:
    """gRPC's options; a proxy that the environment names is not used for this machine itself."""
    here = url.rpartition(":")[0].strip("[]") in LOOPBACK
    return [*OPTIONS, ("grpc.enable_http_proxy", 0)] if here else OPTIONS
