"""Part 6: where the time of a request goes, for the requests around a percentile rather than for the mean one."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from perf.records.study import Prediction, Trial
from perf.report.drawing import NARROW
from perf.report.stacked import stacked
from perf.report.study.evidence import Evidence
from perf.report.study.section import Drawn, Grid, Section
from perf.report.study.units import count, ms, number, percent

TITLE = "Where the time of a request goes"
PERCENTS = (50.0, 90.0, 99.0)
# Requests within so many percentiles of the named one stand for it; of p99 the upper side ends at 100.
BAND = {50.0: 5.0, 90.0: 2.5, 99.0: 0.5}
LEAST = 5
SIMULATED = ", simulated"
REST = "execution, network, client"
# Okabe and Ito's, neighbours apart in lightness; parts of no known name take what is left.
KNOWN = {
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


def parts(evidence: Evidence) -> Section:
    """The shown candidate and the current configuration; simulated percentiles where too few requests were traced."""
    found, missing = {}, []
    for candidate in dict.fromkeys((evidence.shown, evidence.study.default)):
        trials = [one for one in evidence.of(candidate) if one.stages_us or one.parts_us]
        if trials:
            rows, name = taken_apart(trials), evidence.label(candidate)
            filled = _simulated_for(rows, evidence.predicted.get(candidate))
            found[name] = rows | filled
            missing += _missing(name, sum(map(_singly, trials)), rows, filled)
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        none = f"No measurement under {evidence.study.load} holds the parts of a request's time."
        return Section(name="parts", title=TITLE, missing=(none,))
    return Section(
        name="parts",
        title=TITLE,
        sentences=tuple(_sentence(name, rows) for name, rows in found.items()),
        missing=tuple(missing),
        drawn=tuple(_drawn(number, name, rows) for number, (name, rows) in enumerate(found.items(), 1)),
        grids=(_grid(found),),
        data={name: {band: {"n": n, "us": dict(us)} for band, (n, us) in rows.items()} for name, rows in found.items()},
    )


def taken_apart(trials: Sequence[Trial]) -> dict[str, tuple[int, Mapping[str, float]]]:
    """By band (mean, p50, p90, p99): how many requests stand for it, and the mean microseconds of each part."""
    requests = sum(one.requests for one in trials)
    names = list(dict.fromkeys(name for one in trials for name in one.stages_us))
    rows: dict[str, tuple[int, Mapping[str, float]]] = {}
    if names:
        means = {name: sum(one.stages_us.get(name, 0.0) * one.requests for one in trials) for name in names}
        rows["mean"] = (requests, {name: total / max(requests, 1) for name, total in means.items()})
    return rows | _bands([one for one in trials if one.parts_us])


def simulated(one: Prediction | None) -> dict[str, tuple[int, Mapping[str, float]]]:
    """The same of a prediction, which knows queue and the rest; one request in fifty is within 1 of a percentile."""
    if one is None:
        return {}
    return {
        f"p{q:g}{SIMULATED}": (one.requests // 50, {"queue": 1e3 * queue, REST: 1e3 * (one.percentiles_ms[q] - queue)})
        for q, queue in one.queue_ms.items()
        if q in PERCENTS and one.percentiles_ms[q] >= queue
    }


def _simulated_for(rows: Mapping[str, object], one: Prediction | None) -> dict[str, tuple[int, Mapping[str, float]]]:
    """Of a prediction the percentiles that `rows` lacks."""
    return {name: band for name, band in simulated(one).items() if name.removesuffix(SIMULATED) not in rows}


def _missing(name: str, traced: int, rows: Collection[str], filled: Collection[str]) -> list[str]:
    """Why not all percentiles of `rows` are measured, and whose are `filled` in."""
    lacking = [f"p{q:g}" for q in PERCENTS if f"p{q:g}" not in rows]
    if not lacking:
        return []
    if traced:
        why = f"{count(traced, 'request')} traced singly, too few to measure {' and '.join(lacking)} part by part"
    else:
        why = "no request was traced singly, so only the mean is measured part by part"
    return [f"{name}: {why}" + (", and the percentiles marked so are the simulation's." if filled else ".")]


def _bands(trials: Sequence[Trial]) -> dict[str, tuple[int, Mapping[str, float]]]:
    names = list(dict.fromkeys(name for one in trials for name in one.parts_us))
    if not names:
        return {}
    blocks = [
        np.array([one.parts_us.get(name) or [0.0] * _singly(one) for name in names], dtype=np.float64) for one in trials
    ]
    table = np.concatenate(blocks, axis=1)
    totals = table.sum(axis=0)
    found = {}
    for middle in PERCENTS:
        low, high = np.percentile(totals, [middle - BAND[middle], min(middle + BAND[middle], 100)])
        inside = (totals >= low) & (totals <= high)
        if inside.sum() >= LEAST:
            found[f"p{middle:g}"] = (int(inside.sum()), dict(zip(names, table[:, inside].mean(axis=1), strict=True)))
    return {band: (n, {name: float(value) for name, value in values.items()}) for band, (n, values) in found.items()}


def _singly(trial: Trial) -> int:
    """How many requests of a trial were looked at one by one."""
    return len(next(iter(trial.parts_us.values()), ()))


def _drawn(order: int, name: str, rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> Drawn:
    names = list(dict.fromkeys(part for _, values in rows.values() for part in values))
    spare = iter(OTHERS * len(names))
    colours = {part: KNOWN.get(part) or next(spare) for part in names}
    figure = Figure(figsize=(NARROW[0], 1.9 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    values = {part: [us.get(part, 0.0) / 1e3 for _, us in rows.values()] for part in names}
    with mpl.rc_context({"font.size": 10}):
        stacked(axes, [f"{band}\nn = {n:,}" for band, (n, _) in rows.items()], values, colours)
        axes.set_xlabel("ms per request")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, handlelength=1, columnspacing=1.2
        )
    return Drawn(name=f"parts-{order}", caption=_sentence(name, rows), figure=figure)


def _sentence(name: str, rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> str:
    said = []
    for band in ("p50" if "p50" in rows else "mean", "p99" if "p99" in rows else f"p99{SIMULATED}"):
        if band in rows:
            n, values = rows[band]
            total = sum(values.values()) or 1.0
            most = max(values, key=lambda part: values[part])
            whole = ms(total / 1e3)
            share = percent(values[most] / total)
            said.append(f"{band}: most is {most}, {share} of {whole} (n = {count(n, 'request')})")
    return f"{name}, " + "; ".join(said)


def _grid(found: Mapping[str, Mapping[str, tuple[int, Mapping[str, float]]]]) -> Grid:
    names = list(dict.fromkeys(part for rows in found.values() for _, values in rows.values() for part in values))
    rows = tuple(
        (name, band, f"{n:,}", *(number(values.get(part, 0.0) / 1e3) for part in names))
        for name, bands in found.items()
        for band, (n, values) in bands.items()
    )
    titles = ("configuration", "requests around", "n\nrequests", *(f"{part}\nms" for part in names))
    return Grid(titles=titles, rows=rows, left=2, summary="The same as figures")
