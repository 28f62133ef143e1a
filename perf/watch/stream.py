"""What an open page gets after each reading: the texts of its tables, and the new rows of its figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perf.watch import distribution, facts, points, tables
from perf.watch.history import History, Track
from perf.watch.live import Live
from perf.watch.points import OF_SAMPLES, OF_STATES, Row, Values
from perf.watch.sample import Sample, merged
from perf.watch.steps import MINUTES_S, SPANS

ALL = "all servers"
T = TypeVar("T")


@dataclass(kw_only=True)
class Stream:
    """What one open page shows: a window, a model, and a server or all of them; "" lets the program choose."""

    live: Live
    span_s: float = MINUTES_S
    model: str = ""
    server: str = ""
    _sent_s: float = field(default=0.0, init=False)
    _was_asked: bool = field(default=False, init=False)
    _width: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self._was_asked = bool(self.model)

    def event(self) -> dict[str, Any]:
        """The state now. The first time the rows of the whole window, later those that are new or have grown."""
        self._choose()
        histories, tracks = self._histories(), self._tracks()
        now_s = max(history.now_s for history in self.live.histories)
        self._resize(tracks)
        sent_s, self._sent_s = self._sent_s, now_s
        shares, source = self._once("distribution", lambda: self._distribution(tracks))
        return {
            "whole": not sent_s,
            "step": int(sent_s // SPANS[self.span_s]),
            "column": self._column(sent_s),
            "begin": (now_s - self.span_s) * 1e3,
            "end": now_s * 1e3,
            "choice": self._choice(),
            **self.live.once("tables", lambda: _tables(self.live.histories)),
            "figures": self._of_samples(tracks, sent_s) | self._of_states(histories, sent_s),
            "distribution": points.shares(shares),
            "marks": [points.mark(each) for history in histories for each in history.marks],
            "source": source,
        }

    def _choose(self) -> None:
        """Replace a server or a model that is not there: by all servers, and by the model with the most requests."""
        servers = self._servers()
        if self.server not in servers:
            self.server, self._sent_s = servers[0], 0.0
        models = self._models()
        if self.model not in models or not (self._was_asked or self._requests(self.model)):
            before, self.model = self.model, max(models, key=self._requests, default="")
            self._sent_s = self._sent_s if self.model == before else 0.0

    def _resize(self, tracks: Sequence[Track]) -> None:
        """Send all again if the batch sizes need other ranges than before."""
        samples = (sample for track in tracks for sample in track.steps.of(self.span_s))
        width = self._once(
            "width", lambda: facts.range_width(size for each in samples for size in each.counted.batches)
        )
        if width != self._width:
            self._width, self._sent_s = width, 0.0

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """What is the same for all pages of this choice."""
        return self.live.once((name, self.span_s, self.model, self.server), make)

    def _servers(self) -> list[str]:
        urls = [history.url for history in self.live.histories]
        return [ALL, *urls] if len(urls) > 1 else urls

    def _models(self) -> list[str]:
        return sorted({model for history in self._histories() for model in history.tracks})

    def _choice(self) -> dict[str, Any]:
        return {"model": self.model, "models": self._models(), "server": self.server, "servers": self._servers()}

    def _requests(self, model: str) -> int:
        totals = [history.tracks[model].total for history in self._histories() if model in history.tracks]
        return sum(total.counted.requests for total in totals if total)

    def _histories(self) -> Sequence[History]:
        return [history for history in self.live.histories if self.server in (ALL, history.url)]

    def _tracks(self) -> Sequence[Track]:
        return [history.tracks[self.model] for history in self._histories() if self.model in history.tracks]

    def _after_s(self, sent_s: float) -> float:
        """The end of the last step that cannot have grown since."""
        step_s = SPANS[self.span_s]
        return sent_s // step_s * step_s - 1e-6 if sent_s else 0.0

    def _column(self, sent_s: float) -> int:
        """The first column of the map of batch sizes that can have changed since."""
        return int(self._after_s(sent_s) // (self.span_s / points.COLUMNS))

    def _of_samples(self, tracks: Sequence[Track], sent_s: float) -> dict[str, list[Row]]:
        first = self._column(sent_s)
        begin_s = first * self.span_s / points.COLUMNS - 1e-6
        windows = [track.steps.of(self.span_s, begin_s, before=1) for track in tracks]
        samples = together(windows, self.span_s)
        after_s, rows = self._after_s(sent_s), {}
        for name, (values, unit) in OF_SAMPLES.items():
            rows[name] = self._lines([(sample.at_s, values(sample)) for sample in samples], unit, after_s)
        executed = [sample for window in windows for sample in window]
        rows["batches"] += points.cells(executed, self.span_s, self._width, first)
        return rows

    def _of_states(self, histories: Sequence[History], sent_s: float) -> dict[str, list[Row]]:
        """By process for one server; for several the sum of each."""
        after_s, rows = self._after_s(sent_s), {}
        for name, (values, total, unit) in OF_STATES.items():
            by_step: dict[int, tuple[float, dict[str, float | None]]] = {}
            for history in histories:
                for state in history.states.of(self.span_s, after_s, before=1):
                    _, shown = by_step.setdefault(int(state.at_s // SPANS[self.span_s]), (state.at_s, {}))
                    shown.update({history.url: total(state)} if len(histories) > 1 else values(state))
            rows[name] = self._lines([by_step[step] for step in sorted(by_step)], unit, after_s)
        return rows

    def _lines(self, ended: Sequence[tuple[float, Values]], unit: str, after_s: float) -> list[Row]:
        return list(points.lines(ended, self.span_s, 2.5 * self.live.every_s, unit, after_s=after_s))

    def _distribution(self, tracks: Sequence[Track]) -> tuple[list[distribution.Point], str]:
        newest = beside(track.newest for track in tracks)
        has_histogram = any(track.total and track.total.buckets for track in tracks)
        everything = (sample for track in tracks for sample in track.steps.of(self.span_s))
        window = merged(everything) if has_histogram else None
        return distribution.points(window, newest)


def _tables(histories: Sequence[History]) -> dict[str, Any]:
    """What all pages show of all servers."""
    return {
        "servers": tables.servers(histories),
        "tables": {
            "models": tables.models(histories),
            "processes": tables.processes(histories),
            "events": tables.events(histories),
        },
    }


def together(windows: Sequence[Sequence[Sample]], span_s: float) -> list[Sample]:
    """The samples of several servers, their rates added up by step."""
    by_step: dict[int, Sample] = {}
    for sample in (sample for window in windows for sample in window):
        step = int(sample.at_s // SPANS[span_s])
        by_step[step] = by_step[step].beside(sample) if step in by_step else sample
    return [by_step[step] for step in sorted(by_step)]


def beside(samples: Iterable[Sample | None]) -> Sample | None:
    """The sum of the rates of several servers; None without samples."""
    total: Sample | None = None
    for sample in samples:
        if sample is not None:
            total = total.beside(sample) if total else sample
    return total
