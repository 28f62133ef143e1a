"""The candidates of a search: which batch sizes, delays, instances and threads are worth a simulation."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import NO_BATCHES, ONNXRUNTIME
from perf.records.candidate import Candidate
from perf.records.study import LatencyTarget
from serve.doctor.rules.batching import LONG_DELAY_US
from triton_batching.terminal import Mistake

# Delays as shares of the execution of one row. A longer one fills batches if requests spend most of their time outside
# the server, so for each batch size one more is tried: the time in which its rows could run one by one.
DELAY_SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
# Every count of instances up to here is tried, above it every power of two.
EVERY_COUNT = 4
MOST_INSTANCES_ON_GPU = 4
# The step of a service curve after a batch size is worth a candidate if the next row lowers the rows per second by this
# much; noise of the curve makes smaller ones. Only the largest steps are taken.
STEP, MOST_STEPS = 0.05, 3


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many executions run at a time, and how many threads each has (None: as configured)."""

    instances: int
    threads: int | None = None

    @classmethod
    def of(cls, candidate: Candidate) -> "Parallelism":
        """Return the parallelism of a candidate."""
        return cls(instances=candidate.instances, threads=candidate.threads)

    def with_batches_of(self, rows: int) -> Candidate:
        """Return the candidate of so many rows with this parallelism, without a delay."""
        return Candidate(max_batch_size=rows, instances=self.instances, threads=self.threads)

    def covers(self, other: "Parallelism") -> bool:
        """Return whether it has no fewer instances and threads."""
        most = self.threads or math.inf, other.threads or math.inf
        return self.instances >= other.instances and most[0] >= most[1]

    def __str__(self) -> str:
        threads = "" if self.threads is None else f" x {self.threads} threads"
        return f"{self.instances} instance{'s' if self.instances > 1 else ''}{threads}"


@dataclass(frozen=True, kw_only=True)
class Space:
    """Batch sizes and parallelisms to combine; with `preferred` also preferred_batch_size.

    `reached` is the most rows in flight: those of the clients of a closed loop, None for an open load. `smallest` is
    the number of rows of one request.
    """

    default: Candidate
    sizes: tuple[int, ...]
    parallelisms: tuple[Parallelism, ...]
    preferred: bool = False
    reached: int | None = None
    smallest: int = 1

    @property
    def profiled(self) -> tuple[Parallelism, ...]:
        """What to profile: of each thread count the fewest and the most instances; the others are interpolated."""
        profiled = [Parallelism.of(self.default)]
        for threads in dict.fromkeys(parallelism.threads for parallelism in self.parallelisms):
            counts = [each.instances for each in self.parallelisms if each.threads == threads]
            profiled += [Parallelism(instances=count, threads=threads) for count in (min(counts), max(counts))]
        return tuple(dict.fromkeys(profiled))

    def candidates(
        self, service_us: Callable[[Parallelism, int], float], target: LatencyTarget | None = None
    ) -> tuple[Candidate, ...]:
        """Return every candidate, the current configuration first; delays follow from `service_us(..., 1)`.

        A lone request, which waits for the whole delay and then runs, is to meet the target as well, and the doctor is
        to find no long delay (B206).
        """
        candidates = [self.default]
        target_us = 1e3 * target.latency_ms if target else math.inf
        for parallelism in self.parallelisms:
            row_us = service_us(parallelism, 1)
            delays = {_rounded(share * row_us) for share in DELAY_SHARES}
            for size in self._sizes(parallelism, service_us):
                one_by_one = _rounded(size * row_us / parallelism.instances)
                short = {
                    delay for delay in (*delays, one_by_one) if delay < LONG_DELAY_US and delay + row_us < target_us
                }
                for delay in sorted({0, *short} if size > 1 else {0}):
                    candidate = Candidate(
                        max_batch_size=size,
                        delay_us=delay,
                        instances=parallelism.instances,
                        threads=parallelism.threads,
                    )
                    candidates += self._with_preferred(candidate)
        return tuple(dict.fromkeys(candidates))

    def _sizes(self, parallelism: Parallelism, service_us: Callable[[Parallelism, int], float]) -> list[int]:
        """Return the batch sizes to try: `sizes`, equal shares of the rows in flight, and the ends of steps."""
        largest = max(self.sizes)
        reached = largest if self.reached is None else min(largest, self.reached)
        sizes = {*(size for size in self.sizes if size <= reached), reached}
        if self.reached is not None:
            # Each instance gets an equal batch: all requests in flight run at once, or one share of them waits.
            requests = self.reached // self.smallest
            shares = parallelism.instances, parallelism.instances + 1
            sizes |= {self.smallest * -(-requests // share) for share in shares}
        rates = {rows: rows / service_us(parallelism, rows) for rows in range(1, reached + 1)}
        sizes |= set(steps(rates))
        return sorted(size for size in sizes if self.smallest <= size <= largest)

    def _with_preferred(self, candidate: Candidate) -> list[Candidate]:
        if not self.preferred or candidate.max_batch_size < 4:
            return [candidate]
        half = candidate.max_batch_size // 2
        # Without a delay a preferred size below the maximum is a cap, so it is only tried together with the maximum.
        return [candidate, replace(candidate, preferred=(half, candidate.max_batch_size))]


def steps(rates: Mapping[int, float]) -> list[int]:
    """Return the batch sizes after which one more row lowers the rows per second most; `rates` are by batch size."""
    drops = {rows: rates[rows + 1] / rates[rows] for rows in rates if rows + 1 in rates}
    real = [rows for rows, drop in drops.items() if drop < 1 - STEP]
    return sorted(sorted(real, key=lambda rows: drops[rows])[:MOST_STEPS])


def tried_values(candidates: Collection[Candidate]) -> Mapping[str, tuple[int, ...]]:
    """Return the values that `candidates` have of each searched field, for the record."""
    return {
        "max_batch_size": tuple(sorted({candidate.max_batch_size for candidate in candidates})),
        "delay_us": tuple(sorted({candidate.delay_us for candidate in candidates})),
        "instances": tuple(sorted({candidate.instances for candidate in candidates})),
        "threads": tuple(sorted({candidate.threads for candidate in candidates if candidate.threads is not None})),
    }


def space(
    config: ModelConfig,
    *,
    largest: int,
    smallest: int = 1,
    reached: int | None = None,
    cores: int,
    gpu: bool,
    instances: int | None = None,
    preferred: bool = False,
) -> Space:
    """Return the search space of a model; raises `Mistake` if the model has no batch axis.

    Args:
        config: the current configuration.
        largest: the most rows of an execution that the model's variants allow.
        smallest: rows of one request.
        reached: the most rows in flight (None: an open load, without a limit).
        cores: CPU cores of the machine.
        gpu: whether the model runs on a GPU.
        instances: the most instances to try (None: one for each core, on a GPU up to 4).
        preferred: whether to try preferred_batch_size.
    """
    default = Candidate.of(config)
    if default.max_batch_size < 1 or largest < 1:
        raise Mistake(f"'{config.name}' has {NO_BATCHES}")
    sizes = [size for power in range(int(math.log2(largest)) + 1) if (size := 2**power) >= smallest]
    parallelisms = _parallelisms(config, default, cores=cores, gpu=gpu, instances=instances)
    return Space(
        default=default,
        sizes=tuple(sorted({*sizes, largest, default.max_batch_size})),
        parallelisms=tuple(dict.fromkeys([Parallelism.of(default), *parallelisms])),
        preferred=preferred,
        reached=reached,
        smallest=smallest,
    )


def _parallelisms(
    config: ModelConfig, default: Candidate, *, cores: int, gpu: bool, instances: int | None
) -> list[Parallelism]:
    if len(config.instance_group) > 1:
        return []  # one count cannot describe groups on several devices, which the user chose
    most = instances or (min(cores, MOST_INSTANCES_ON_GPU) if gpu else cores)
    counts = [
        count for count in range(1, most + 1) if count <= EVERY_COUNT or count == most or math.log2(count) % 1 == 0
    ]
    if config.backend not in ONNXRUNTIME or gpu:
        return [Parallelism(instances=count, threads=default.threads) for count in counts]
    # Without a number of threads onnxruntime takes every core, so each instance gets its share.
    shares = {count: max(1, cores // count) for count in counts if count >= cores or cores % count == 0}
    now = default.threads or cores
    return [
        Parallelism(instances=count, threads=default.threads if threads == now else threads)
        for count, threads in shares.items()
    ]


def _rounded(us: float) -> int:
    """Round to two digits, which are enough for a delay and easy to read."""
    if us < 1:
        return 0
    digits: int = 10 ** max(0, int(math.log10(us)) - 1)
    return round(us / digits) * digits
