"""The last day of a server: differences of its counters, in fine steps for minutes and in coarse ones for the day.

Its windows are times, however long the time between two readings. Its size is bounded: readings of the same step are
merged, so a model has at most 1,700 samples (see `steps`).
"""

from collections import deque
from dataclasses import dataclass, field

from perf.watch import mark
from perf.watch.mark import Mark
from perf.watch.reading import Reading
from perf.watch.sample import Sample, merged
from perf.watch.state import State, cores
from perf.watch.steps import DAY_S, MINUTES_S, Steps

FELL_S = 60.0
# A server that dies each minute has its last hours of marks.
MOST_MARKS = 500


@dataclass(kw_only=True)
class Track:
    """One model: the `steps` of the last day, and the `total` of all.

    `loaded` says whether the last reading had the model; `total` is None before the first sample. `newest` is the last
    sample alone.
    """

    loaded: bool = True
    steps: Steps[Sample] = field(default_factory=Steps)
    total: Sample | None = None
    newest: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Add a sample; samples that end within the same step are merged."""
        self.steps.add(sample)
        self.newest = sample
        self.total = self.total.then(sample) if self.total else sample

    def recent(self, seconds: float, now_s: float) -> Sample | None:
        """The sum of the samples of the last `seconds`, at most five minutes; None if none ended in that time.

        A sample belongs to the time in which most of it lies, and the newest one always counts. The `seconds` of the
        sum say what it covers: less at the start of a watch, more if the readings are further apart.
        """
        begin = now_s - seconds
        ended = self.steps.of(MINUTES_S, begin)
        inside = [sample for sample in ended if sample.at_s - sample.seconds / 2 > begin]
        return merged(inside or list(ended)[-1:])


@dataclass(kw_only=True)
class History:
    """The readings of the server at `url`.

    `down_since_s` is the time of the first missed reading, None while the server answers. `silence` is the reason for
    missing metrics. `fell_s` are the times, in the last minute, of readings in which a total was lower than before.
    `busy` holds the cores that each living process used between the last two readings, by its id.
    """

    url: str = ""
    tracks: dict[str, Track] = field(default_factory=dict)
    states: Steps[State] = field(default_factory=Steps)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))
    now_s: float = 0.0
    down_since_s: float | None = None
    silence: str = ""
    fell_s: deque[float] = field(default_factory=deque)
    last: Reading | None = None
    busy: dict[int, float] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        """Add a reading. The first one is only the start of the differences."""
        self._mark(reading)
        self.now_s, self.down_since_s, self.silence = reading.at_s, None, reading.silence
        self.states.add(State.of(reading, self.last))
        self.busy = cores(reading, self.last)
        if self.last is not None and reading.fell(self.last):
            self.fell_s.append(reading.at_s)
        loaded = {model for model, _ in reading.counters}
        for model in sorted(loaded):
            track = self.tracks.setdefault(model, Track())
            if self.last is not None:
                track.add(Sample.between(self.last, reading, model))
        self._forget(loaded)
        self.last = reading

    def miss(self, at_s: float) -> None:
        """Note that the server did not answer; unless it restarts, its next reading covers this time."""
        self.now_s = at_s
        if self.down_since_s is None:
            self.down_since_s = at_s
            self.marks.append(Mark(at_s=at_s, kind="death", text="the server does not answer"))
        self._forget(set())

    @property
    def state(self) -> State | None:
        """The last state of the machine; None before the first reading."""
        return self.states.last

    def _mark(self, reading: Reading) -> None:
        events = mark.between(self.last, reading) if self.last else []
        if self.down_since_s is not None and not (self.last and mark.started_again(self.last, reading)):
            events.insert(0, Mark(at_s=reading.at_s, kind="load", text="the server answers again"))
        self.marks.extend(events)

    def _forget(self, loaded: set[str]) -> None:
        """Drop values older than a day, and models that were not loaded within the day."""
        while self.fell_s and self.fell_s[0] < self.now_s - FELL_S:
            self.fell_s.popleft()
        while self.marks and self.marks[0].at_s < self.now_s - DAY_S:
            self.marks.popleft()
        self.states.forget(self.now_s)
        for model, track in list(self.tracks.items()):
            track.loaded = model in loaded
            track.steps.forget(self.now_s)
            if not track.loaded and not track.steps:
                del self.tracks[model]
