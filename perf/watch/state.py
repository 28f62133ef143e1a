"""What a server's machine and processes used between two readings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perf.watch.reading import Reading
from serve.management.gpu_use import together


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The processes of one owner: how many, their CPU time in cores (1 is one whole core), and their memory."""

    count: int
    cores: float | None
    memory_bytes: float
    gpu_bytes: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The `seconds` before `at_s`: busy shares from 0 to 1 and bytes of memory; None if unknown.

    `parts` holds the server's own processes by their owner, a model or "tritonserver".
    """

    at_s: float
    seconds: float = 0.0
    cpu: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None
    gpu: float | None
    gpu_memory_bytes: float | None
    parts: Mapping[str, Part] = field(default_factory=dict)

    @classmethod
    def of(cls, reading: Reading, before: Reading | None = None) -> "State":
        """The state in a reading: the mean busy share of the GPUs and the sum of their memory."""
        gpu, metrics = together(reading.gpus), reading.metrics
        return cls(
            at_s=reading.at_s,
            seconds=reading.at_s - before.at_s if before else 0.0,
            cpu=metrics.cpu if metrics else None,
            memory_bytes=metrics.memory_bytes if metrics else None,
            memory_total_bytes=metrics.memory_total_bytes if metrics else None,
            gpu=gpu.busy if gpu else None,
            gpu_memory_bytes=gpu.memory_bytes if gpu else None,
            parts=_parts(reading, before),
        )

    def then(self, later: "State") -> "State":
        """Both together: the mean of what was busy, and the later memory."""
        parts = {owner: _joined(self.parts.get(owner), part, self, later) for owner, part in later.parts.items()}
        return State(
            at_s=later.at_s,
            seconds=self.seconds + later.seconds,
            cpu=_mean(self.cpu, later.cpu, self, later),
            memory_bytes=later.memory_bytes,
            memory_total_bytes=later.memory_total_bytes,
            gpu=_mean(self.gpu, later.gpu, self, later),
            gpu_memory_bytes=later.gpu_memory_bytes,
            parts=parts,
        )


def cores(reading: Reading, before: Reading | None) -> dict[int, float]:
    """The CPU time of each living process since the earlier reading, in cores; a new process has none yet."""
    earlier = {process.pid: process.cpu_s for process in before.processes} if before else {}
    seconds = reading.at_s - before.at_s if before else 0.0
    return {
        process.pid: max(0.0, process.cpu_s - earlier[process.pid]) / seconds
        for process in reading.processes
        if process.pid in earlier and seconds > 0 and not process.dead
    }


def _parts(reading: Reading, before: Reading | None) -> dict[str, Part]:
    busy, parts = cores(reading, before), {}
    for owner in dict.fromkeys(process.owner for process in reading.processes):
        living = [process for process in reading.processes if process.owner == owner and not process.dead]
        known = [busy[process.pid] for process in living if process.pid in busy]
        on_gpu = [process.gpu_bytes for process in living if process.gpu_bytes is not None]
        parts[owner] = Part(
            count=len(living),
            cores=sum(known) if known else None,
            memory_bytes=float(sum(process.memory_bytes for process in living)),
            gpu_bytes=sum(on_gpu) if on_gpu else None,
        )
    return parts


def _joined(first: Part | None, then: Part, before: State, after: State) -> Part:
    return Part(
        count=then.count,
        cores=_mean(first.cores if first else None, then.cores, before, after),
        memory_bytes=then.memory_bytes,
        gpu_bytes=then.gpu_bytes,
    )


def _mean(first: float | None, second: float | None, before: State, after: State) -> float | None:
    """The mean by time of two values; the one that is known if the other is not."""
    if first is None or second is None:
        return second if first is None else first
    seconds = before.seconds + after.seconds
    return (first * before.seconds + second * after.seconds) / seconds if seconds else second
