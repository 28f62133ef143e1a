"""The configurations that a search looks at: which rows, delays, instances and threads are worth a simulation."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records.candidate import Candidate
from triton_batching.terminal import Mistake

# A wait longer than one execution only lengthens the queue: while it lasts, an instance could have run one more.
DELAY_SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
# Every count of instances up to here is looked at, beyond it every power of two.
EVERY_COUNT = 4
MOST_INSTANCES_ON_GPU = 4


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What decides how fast so many rows are: executions at a time, and threads in each (None: as configured)."""

    instances: int
    threads: int | None = None

    @classmethod
    def of(cls, candidate: Candidate) -> "Pair":
        """The pair of a candidate."""
        return cls(instances=candidate.instances, threads=candidate.threads)

    def __str__(self) -> str:
        threads = "" if self.threads is None else f" x {self.threads} threads"
        return f"{self.instances} instance{'s' if self.instances > 1 else ''}{threads}"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched: rows in one execution, pairs, and sizes that are to be preferred (only where asked for)."""

    default: Candidate
    sizes: tuple[int, ...]
    pairs: tuple[Pair, ...]
    preferred: bool = False

    @property
    def profiled(self) -> tuple[Pair, ...]:
        """The pairs to profile: of each thread count the fewest and the most instances; what lies between is fitted."""
        found = dict.fromkeys([Pair.of(self.default)])
        for threads in dict.fromkeys(pair.threads for pair in self.pairs):
            counts = [pair.instances for pair in self.pairs if pair.threads == threads]
            found.update(dict.fromkeys(Pair(instances=count, threads=threads) for count in (min(counts), max(counts))))
        return tuple(found)

    def candidates(self, service_us: Callable[[Pair, int], float]) -> tuple[Candidate, ...]:
        """Every candidate, the current configuration first; delays are shares of `service_us(pair, rows)`."""
        found = dict.fromkeys([self.default])
        for pair in self.pairs:
            delays = sorted({_rounded(share * service_us(pair, 1)) for share in DELAY_SHARES})
            for size in self.sizes:
                for delay in delays if size > 1 else delays[:1]:
                    made = Candidate(
                        max_batch_size=size, delay_us=delay, instances=pair.instances, threads=pair.threads
                    )
                    found.update(dict.fromkeys(self._with_preferred(made)))
        return tuple(found)

    def tried(self, candidates: Iterable[Candidate]) -> Mapping[str, tuple[int, ...]]:
        """Each searched value and what was tried of it, for the record."""
        known = list(candidates)
        return {
            "max_batch_size": tuple(sorted({one.max_batch_size for one in known})),
            "delay_us": tuple(sorted({one.delay_us for one in known})),
            "instances": tuple(sorted({one.instances for one in known})),
            "threads": tuple(sorted({one.threads for one in known if one.threads is not None})),
        }

    def _with_preferred(self, made: Candidate) -> list[Candidate]:
        if not self.preferred or made.max_batch_size < 4:
            return [made]
        half = made.max_batch_size // 2
        # Without a delay a preferred size below the maximum is a cap, so it is only tried together with the maximum.
        return [made, replace(made, preferred=(half, made.max_batch_size))]


def space(
    config: ModelConfig,
    *,
    largest: int,
    smallest: int = 1,
    cores: int,
    gpu: bool,
    instances: int | None = None,
    preferred: bool = False,
) -> Space:
    """The space of a model on a machine of so many cores; raises `Mistake` for a model without a batch axis.

    Its variants allow `largest` rows in one execution, and a request has `smallest`.
    """
    default = Candidate.of(config)
    if default.max_batch_size < 1 or largest < 1:
        raise Mistake(
            f"'{config.name}' has max_batch_size 0: its graph has no batch axis, so there is nothing to batch. "
            "Give it one: python -m export add --help."
        )
    sizes = [size for power in range(int(math.log2(largest)) + 1) if (size := 2**power) >= smallest]
    pairs = _pairs(config, default, cores=cores, gpu=gpu, instances=instances)
    return Space(
        default=default,
        sizes=tuple(sorted({*sizes, largest, default.max_batch_size})),
        pairs=tuple(dict.fromkeys([Pair.of(default), *pairs])),
        preferred=preferred,
    )


def _pairs(config: ModelConfig, default: Candidate, *, cores: int, gpu: bool, instances: int | None) -> list[Pair]:
    if len(config.instance_group) > 1:
        return []  # groups on several devices are a person's choice, and one number cannot stand for it
    most = instances or (min(cores, MOST_INSTANCES_ON_GPU) if gpu else cores)
    counts = [one for one in range(1, most + 1) if one <= EVERY_COUNT or one == most or math.log2(one) % 1 == 0]
    if config.backend != "onnxruntime" or gpu:
        return [Pair(instances=count, threads=default.threads) for count in counts]
    # onnxruntime takes every core where the configuration does not say how many, so each instance gets its share.
    shares = {count: max(1, cores // count) for count in counts if count >= cores or cores % count == 0}
    now = default.threads or cores
    return [Pair(instances=count, threads=default.threads if one == now else one) for count, one in shares.items()]


def _rounded(us: float) -> int:
    """Two digits are enough for a wait, and a person can read them."""
    if us < 1:
        return 0
    digits: int = 10 ** max(0, int(math.log10(us)) - 1)
    return round(us / digits) * digits
