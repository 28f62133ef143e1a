"""The last hour of a server: differences of its counters, in fine steps for a minute and in coarse ones for the hour.

Its windows are times, however long the time between two readings. Its size is bounded: readings of the same step are
merged, so a model that was loaded within the hour has at most 121 + 361 samples, each of 10 kB if it has run 32 batch
sizes.
"""

from collections import deque
from dataclasses import dataclass, field

from perf.watch.reading import Reading
from perf.watch.sample import Sample, merged
from serve.management.gpu_use import together

# How long fine and coarse samples are kept, and the steps within which samples are merged.
FINE_SPAN_S, FINE_S = 60.0, 0.5
SPAN_S, COARSE_S = 3600.0, 10.0


@dataclass(frozen=True, kw_only=True)
class State:
    """The machine at `at_s`: busy shares from 0 to 1 and bytes of memory; None if unknown."""

    at_s: float
    cpu: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None
    gpu: float | None
    gpu_memory_bytes: float | None

    @classmethod
    def of(cls, reading: Reading) -> "State":
        """The state in a reading: the mean busy share of the GPUs and the sum of their memory."""
        gpu, metrics = together(reading.gpus), reading.metrics
        return cls(
            at_s=reading.at_s,
            cpu=metrics.cpu if metrics else None,
            memory_bytes=metrics.memory_bytes if metrics else None,
            memory_total_bytes=metrics.memory_total_bytes if metrics else None,
            gpu=gpu.busy if gpu else None,
            gpu_memory_bytes=gpu.memory_bytes if gpu else None,
        )


@dataclass(kw_only=True)
class Track:
    """One model: `fine` samples of the last minute, `coarse` samples of the last hour, and the `total` of all.

    `loaded` says whether the last reading had the model; `total` is None before the first sample.
    """

    loaded: bool = True
    fine: deque[Sample] = field(default_factory=deque)
    coarse: deque[Sample] = field(default_factory=deque)
    total: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Add a sample; samples that end within the same step are merged."""
        _append(self.fine, sample, FINE_S)
        _append(self.coarse, sample, COARSE_S)
        _drop(self.fine, sample.at_s - FINE_SPAN_S)
        self.total = self.total.then(sample) if self.total else sample

    def recent(self, seconds: float, now_s: float) -> Sample | None:
        """The sum of the samples of the last `seconds`, at most a minute; None if none ended in that time.

        A sample belongs to the time in which most of it lies, and the newest one always counts. The `seconds` of the
        sum say what it covers: less at the start of a watch, more if the readings are further apart.
        """
        begin = now_s - seconds
        if not self.fine or self.fine[-1].at_s <= begin:
            return None
        inside = [sample for sample in self.fine if sample.at_s - sample.seconds / 2 > begin]
        return merged(inside or [self.fine[-1]])

    def hour(self) -> Sample | None:
        """The sum of the samples of the last hour; None without samples."""
        return merged(self.coarse)

    def forget(self, before_s: float) -> None:
        """Drop the samples that ended before this time."""
        for samples in (self.fine, self.coarse):
            _drop(samples, before_s)


@dataclass(kw_only=True)
class History:
    """The readings of one server.

    `down_since_s` is the time of the first missed reading, None while the server answers. `silence` is the reason for
    missing metrics. `door` says that the address is one of several servers, "" if that is not known. `fell_s` are the
    times, in the last minute, of readings in which a total was lower than before.
    """

    tracks: dict[str, Track] = field(default_factory=dict)
    states: deque[State] = field(default_factory=deque)
    began_s: float | None = None
    now_s: float = 0.0
    down_since_s: float | None = None
    silence: str = ""
    door: str = ""
    fell_s: deque[float] = field(default_factory=deque)
    _last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading. The first one is only the start of the differences."""
        self.began_s = reading.at_s if self.began_s is None else self.began_s
        self.now_s, self.down_since_s, self.silence = reading.at_s, None, reading.silence
        if self.states and self.states[-1].at_s // COARSE_S == reading.at_s // COARSE_S:
            self.states.pop()
        self.states.append(State.of(reading))
        if self._last is not None and reading.fell(self._last):
            self.fell_s.append(reading.at_s)
        loaded = {model for model, _ in reading.counters}
        for model in sorted(loaded):
            track = self.tracks.setdefault(model, Track())
            if self._last is not None:
                track.add(Sample.between(self._last, reading, model))
        self._forget(loaded)
        self._last = reading

    def miss(self, at_s: float) -> None:
        """Note that the server did not answer; unless it restarts, its next reading covers this time."""
        self.now_s = at_s
        self.down_since_s = self.down_since_s or at_s
        self._forget(set())

    @property
    def state(self) -> State | None:
        """The last state of the machine; None before the first reading."""
        return self.states[-1] if self.states else None

    def _forget(self, loaded: set[str]) -> None:
        """Drop values older than an hour, and models that were not loaded within the hour."""
        oldest = self.now_s - SPAN_S
        while self.fell_s and self.fell_s[0] < self.now_s - FINE_SPAN_S:
            self.fell_s.popleft()
        _drop(self.states, oldest)
        for model, track in list(self.tracks.items()):
            track.loaded = model in loaded
            track.forget(oldest)
            if not track.loaded and not track.coarse:
                del self.tracks[model]


def _append(samples: deque[Sample], sample: Sample, step_s: float) -> None:
    """Append the sample, or add it to the last one if that ended within the same step."""
    if samples and samples[-1].at_s // step_s == sample.at_s // step_s:
        samples[-1] = samples[-1].then(sample)
    else:
        samples.append(sample)


def _drop(ended: deque[Sample] | deque[State], before_s: float) -> None:
    while ended and ended[0].at_s < before_s:
        ended.popleft()
