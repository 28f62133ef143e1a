"""Requests of different length: what their executions compute with and without padding, and how long that takes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perf.simulate.batcher.instances import Duration, ServiceTime
from perf.simulate.batcher.request import Request, Time

Computed = Callable[[Sequence[Request]], int]
"""The elements that one execution of these requests computes, padding included."""

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The inputs in which requests differ, and the requests' shapes.

    `mean` are the elements of a row, `largest` the largest size of each axis, `varying` the axes in which requests
    differ, `buckets` the powers of 2 that hold all their sizes there.
    """

    names: Sequence[str]
    mean: float
    largest: Mapping[str, Shape]
    varying: Mapping[str, Sequence[bool]]
    buckets: Sequence[int]

    @classmethod
    def of(cls, names: Sequence[str], requests: Iterable[Request]) -> "Lengths":
        """Read the requests."""
        seen = [*requests]
        shapes = {name: [each.shapes[name] for each in seen if name in each.shapes] for name in names}
        rows = sum(request.rows for request in seen)
        sizes = {name: [set(axis) for axis in zip(*each, strict=True)] for name, each in shapes.items()}
        varied = set().union(*(axis for axes in sizes.values() for axis in axes if len(axis) > 1))
        return cls(
            names=names,
            mean=sum(request.rows * _elements(request, names) for request in seen) / max(1, rows),
            largest={name: _widest(each) for name, each in shapes.items()},
            varying={name: [len(axis) > 1 for axis in axes] for name, axes in sizes.items()},
            buckets=sorted({_power(size) for size in varied}),
        )

    def own(self, requests: Sequence[Request]) -> int:
        """The requests' own elements: requests of one shape, or a graph that takes flat input."""
        return sum(request.rows * _elements(request, self.names) for request in requests)

    def longest(self, requests: Sequence[Request]) -> int:
        """All rows padded to the longest of the execution."""
        return self._rows(requests) * sum(
            math.prod(_widest([request.shapes.get(name, ()) for request in requests])) for name in self.names
        )

    def bucketed(self, requests: Sequence[Request]) -> int:
        """All rows padded to the bucket of the longest of the execution."""
        widest = {name: _widest([request.shapes.get(name, ()) for request in requests]) for name in self.names}
        return self._rows(requests) * sum(
            math.prod(
                self._bucket(size) if varies else size for size, varies in zip(shape, self.varying[name], strict=False)
            )
            for name, shape in widest.items()
        )

    def maximum(self, requests: Sequence[Request]) -> int:
        """All rows padded to the longest of all requests, as clients would."""
        return self._rows(requests) * sum(map(math.prod, self.largest.values()))

    def timed(self, service: ServiceTime, computed: Computed) -> Duration:
        """The time of an execution if its elements count as so many rows of mean size."""
        return lambda requests: _at(service, computed(requests) / (self.mean or 1))

    def _rows(self, requests: Sequence[Request]) -> int:
        return sum(request.rows for request in requests)

    def _bucket(self, size: int) -> int:
        return next((bucket for bucket in self.buckets if bucket >= size), size)


def _elements(request: Request, names: Sequence[str]) -> int:
    return sum(math.prod(request.shapes[name]) for name in names if name in request.shapes)


def _widest(shapes: Sequence[Shape]) -> Shape:
    return tuple(map(max, zip(*filter(None, shapes), strict=True)))


def _power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _at(service: ServiceTime, rows: float) -> Time:
    """The time of a fraction of rows, on the line between whole numbers; below 1 row on that from 1 to 2."""
    below = max(1, math.floor(rows))
    first, second = service(below), service(below + 1)
    return max(0, round(first + (rows - below) * float(second - first)))
