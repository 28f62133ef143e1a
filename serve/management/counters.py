"""What a server counts for one model: its statistics as a value, and the difference of two.

Triton counts per request for durations (each request is charged the whole execution it was part of), per row for
inferences, and per execution for batch sizes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from tritonclient.grpc.service_pb2 import ModelStatistics


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Totals since the model was loaded, or a difference of two such totals.

    `*_ns` are sums over successful requests; `batches` maps rows of an execution to the number of such executions,
    `batches_ns` to the time they spent in compute, `batches_input_ns` and `batches_output_ns` to what went before and
    after it (empty in records of before these were read).
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
    def of(cls, model: ModelStatistics) -> Self:
        """What one version of a model has counted, from the server's answer."""
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
        """What all versions of a model have counted; raises `IndexError` for none."""
        return sum((cls.of(one) for one in versions[1:]), cls.of(versions[0]))

    @classmethod
    def none(cls) -> Self:
        """Nothing counted."""
        values: dict[str, Any] = {one.name: 0 if one.type is int else {} for one in fields(cls)}
        return cls(**values)

    def since(self, earlier: Self | None) -> Self:
        """What was counted after `earlier`; all of it where any total is lower now, so that counting began anew.

        A server or a model that was started again counts from 0.
        """
        if earlier is None:
            return self
        counted = self - earlier
        parts = [[value] if isinstance(value, int) else value.values() for value in vars(counted).values()]
        return self if min(itertools.chain(*parts)) < 0 else counted

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

    @property
    def rows_per_execution(self) -> float:
        """Mean rows that ran together; 0 when nothing ran."""
        return self.rows / self.executions if self.executions else 0.0

    def execution_ns(self, rows: int) -> int:
        """Time of all executions of so many rows together, from their start to their last answer."""
        return self.computing_ns(rows) + self.batches_output_ns.get(rows, 0)

    def computing_ns(self, rows: int) -> int:
        """The same until their answers begin to leave."""
        return self.batches_input_ns.get(rows, 0) + self.batches_ns.get(rows, 0)

    @property
    def busy_ns(self) -> int:
        """Time of all executions together, over all instances."""
        return sum(map(self.execution_ns, self.batches))

    @property
    def compute_ns(self) -> int:
        """Time that requests were charged for their executions, from their start to the answer."""
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns

    def per_request_us(self, total_ns: int) -> float:
        """A sum over requests as microseconds per request; 0 when there was none."""
        return total_ns / self.requests / 1e3 if self.requests else 0.0


def _merge(one: Mapping[int, int], other: Mapping[int, int], sign: int) -> dict[int, int]:
    merged = {size: one.get(size, 0) + sign * other.get(size, 0) for size in sorted({*one, *other})}
    return {size: count for size, count in merged.items() if count}
