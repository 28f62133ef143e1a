"""Part 6: where the time of a request goes, for the requests around a percentile and for the mean."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from perf.records.study import Prediction, Trial
from perf.report.figure import Figure
from perf.report.section import Grid, Section
from perf.report.study.evidence import Evidence
from perf.report.time_parts import Bar, time_parts
from perf.report.units import count, ms, number, percent

TITLE = "Where the time of a request goes"
PERCENTS = (50.0, 90.0, 99.0)
# The requests within this distance of a percentile, in percentiles, represent it.
BAND = {50.0: 5.0, 90.0: 2.5, 99.0: 0.5}
MIN_REQUESTS = 5
SIMULATED = ", simulated"
REST = "execution, network, client"
# Okabe and Ito's palette; neighbours differ in lightness. Parts with other names take the OTHERS.
COLOUR_OF = {
    "late send": "#F0E442",
    "client write": "#56B4E9",
    "client send": "#56B4E9",
    "network": "#808894",
    "queue": "#E69F00",
    "batch gather": "#CC79A7",
    "compute input": "#CC79A7",
    "run": "#0072B2",
    REST: "#7F5FA8",
    "compute infer": "#0072B2",
    "split": "#009E73",
    "compute output": "#009E73",
    "copy back": "#D55E00",
    "client receive": "#D55E00",
}
OTHERS = ("#B8A13A", "#4B7A78", "#A35C4B")

Bands = Mapping[str, tuple[int, Mapping[str, float]]]
"""For each band (mean, p50, p90, p99): the number of requests, and the mean microseconds of each part."""


def parts(evidence: Evidence) -> Section:
    """The shown candidate and the current configuration; percentiles with too few traced requests are simulated."""
    by_name: dict[str, Bands] = {}
    missing = []
    for candidate in dict.fromkeys((evidence.shown, evidence.study.default)):
        trials = [trial for trial in evidence.of(candidate) if trial.stages_us or trial.parts_us]
        if trials:
            bands, name = bands_of(trials), evidence.label(candidate)
            filled = _simulated_for(bands, evidence.predicted.get(candidate))
            missing += _missing(name, sum(map(_traced, trials)), bands, filled)
            if bands or filled:
                by_name[name] = {**bands, **filled}
    if not by_name:
        reason = f"No measurement under {evidence.study.load} has the parts of a request's time."
        return Section(name="parts", title=TITLE, missing=(reason,))
    return Section(
        name="parts",
        title=TITLE,
        sentences=tuple(_sentence(name, bands) for name, bands in by_name.items()),
        missing=tuple(missing),
        figures=tuple(_figure(number, name, bands) for number, (name, bands) in enumerate(by_name.items(), 1)),
        grids=(_grid(by_name),),
        data={
            name: {band: {"n": n, "us": dict(us)} for band, (n, us) in bands.items()} for name, bands in by_name.items()
        },
    )


def bands_of(trials: Sequence[Trial]) -> Bands:
    """The parts of the mean request and of the requests around each percentile."""
    requests = sum(trial.requests for trial in trials)
    names = list(dict.fromkeys(name for trial in trials for name in trial.stages_us))
    bands: dict[str, tuple[int, Mapping[str, float]]] = {}
    if names:
        totals = {name: sum(trial.stages_us.get(name, 0.0) * trial.requests for trial in trials) for name in names}
        bands["mean"] = (requests, {name: total / max(requests, 1) for name, total in totals.items()})
    return {**bands, **_percentile_bands([trial for trial in trials if trial.parts_us])}


def simulated(prediction: Prediction | None) -> Bands:
    """The bands of a prediction: queue and rest. One request in fifty is within one percentile of a percentile."""
    if prediction is None:
        return {}
    totals = prediction.percentiles_ms
    return {
        f"p{q:g}{SIMULATED}": (prediction.requests // 50, {"queue": 1e3 * queue, REST: 1e3 * (totals[q] - queue)})
        for q, queue in prediction.queue_ms.items()
        if q in PERCENTS and totals[q] >= queue
    }


def _simulated_for(measured: Bands, prediction: Prediction | None) -> Bands:
    """The simulated percentiles that are not measured."""
    return {name: band for name, band in simulated(prediction).items() if name.removesuffix(SIMULATED) not in measured}


def _missing(name: str, traced: int, measured: Collection[str], filled: Collection[str]) -> list[str]:
    """Why some percentiles are not measured, and whether the simulation fills them in."""
    lacking = [f"p{q:g}" for q in PERCENTS if f"p{q:g}" not in measured]
    if not lacking:
        return []
    if traced:
        why = f"{count(traced, 'request')} traced, too few for the parts of {' and '.join(lacking)}"
    else:
        why = "no request was traced, so only the parts of the mean are measured"
    return [f"{name}: {why}" + ("; the marked percentiles are simulated." if filled else ".")]


def _percentile_bands(trials: Sequence[Trial]) -> Bands:
    names = list(dict.fromkeys(name for trial in trials for name in trial.parts_us))
    if not names:
        return {}
    blocks = [
        np.array([trial.parts_us.get(name) or [0.0] * _traced(trial) for name in names], dtype=np.float64)
        for trial in trials
    ]
    table = np.concatenate(blocks, axis=1)
    totals = table.sum(axis=0)
    bands: dict[str, tuple[int, Mapping[str, float]]] = {}
    for middle in PERCENTS:
        low, high = np.percentile(totals, [middle - BAND[middle], min(middle + BAND[middle], 100)])
        inside = (totals >= low) & (totals <= high)
        if inside.sum() >= MIN_REQUESTS:
            means = map(float, table[:, inside].mean(axis=1))
            bands[f"p{middle:g}"] = (int(inside.sum()), dict(zip(names, means, strict=True)))
    return bands


def _traced(trial: Trial) -> int:
    """The number of traced requests of a trial."""
    return len(next(iter(trial.parts_us.values()), ()))


def _figure(order: int, name: str, bands: Bands) -> Figure:
    names = list(dict.fromkeys(part for _, values in bands.values() for part in values))
    spare = iter(OTHERS * len(names))
    colours = {part: COLOUR_OF.get(part) or next(spare) for part in names}
    bars = [
        Bar(
            name=f"{band}, n = {n:,}",
            configuration=name,
            requests=f"{band}, {n:,} requests",
            ms={part: us.get(part, 0.0) / 1e3 for part in names},
        )
        for band, (n, us) in bands.items()
    ]
    return Figure(name=f"parts-{order}", caption=_sentence(name, bands), chart=time_parts(bars, colours))


def _sentence(name: str, bands: Bands) -> str:
    texts = []
    for band in ("p50" if "p50" in bands else "mean", "p99" if "p99" in bands else f"p99{SIMULATED}"):
        if band in bands:
            n, values = bands[band]
            total = sum(values.values()) or 1.0
            largest = max(values, key=lambda part: values[part])
            share = f"{percent(values[largest] / total)} of {ms(total / 1e3)}"
            texts.append(f"{band}: the largest part is {largest}, {share} (n = {count(n, 'request')})")
    return f"{name}, " + "; ".join(texts)


def _grid(by_name: Mapping[str, Bands]) -> Grid:
    names = list(dict.fromkeys(part for bands in by_name.values() for _, us in bands.values() for part in us))
    rows = tuple(
        (name, band, f"{n:,}", *(number(values.get(part, 0.0) / 1e3) for part in names))
        for name, bands in by_name.items()
        for band, (n, values) in bands.items()
    )
    titles = ("configuration", "requests around", "n\nrequests", *(f"{part}\nms" for part in names))
    return Grid(titles=titles, rows=rows, left=2, summary="All values")
