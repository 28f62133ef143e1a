"""Step 5: the tuner's choice against the best of a small grid, both measured again in turn."""

import math
from pathlib import Path

import numpy as np

from export.variant.report import later_stage
from perf.load.variant import read as read_variant
from perf.measure.service_time_run import StepProgress
from perf.records.study import Study
from perf.records.traffic import Traffic
from perf.stats.latency_target import LatencyTarget
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.models import copied
from perf.studies.gpu.record import COMMAND, Finding
from perf.studies.grid.__main__ import NO_TARGET, candidates, measure, stored
from perf.studies.grid.record import Grid, judge
from perf.tune.live import LiveBench
from perf.tune.study_log import Bench
from perf.tune.tuning import Question
from triton_batching.terminal import Failure

# The target is this percentile of the p99s of the grid: most configurations meet it, and it still refuses some.
PERCENTILE = 75
NOT_TUNED = "not run in the small form: perf.tune takes a minute"


def tuner(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """Measure the grid, tune, and compare; what is on record is not repeated."""
    repository = folder / "models"
    copied(extent.tuned, repository)
    traffic = Traffic.parse(extent.load)
    config = read_variant(extent.tuned, None, repository)
    with LiveBench(config=config, target=NO_TARGET, repository=repository, command=COMMAND) as bench:
        grid = _grid(extent, traffic, folder / "grid.json", bench, progress)
    target = LatencyTarget(latency_ms=float(f"{np.percentile([each.p99_ms for each in grid.points], PERCENTILE):.3g}"))
    best = grid.best(target.latency_ms)
    what = f"{extent.tuned}, {extent.load}, p99 <= {target.latency_ms:g} ms"
    if best is None:
        return [Finding(what=what, note="no configuration of the grid met the target")]
    found = Finding(
        what=f"{what}: the best of the grid", value=best.throughput_rows_per_s, unit="rows/s", note=str(best.candidate)
    )
    what = f"{what}: the tuner's choice over it"
    if not extent.points:
        return [found, Finding(what=what, note=NOT_TUNED)]
    question = Question(
        model=extent.tuned,
        target=target,
        traffic=traffic,
        instances=max(extent.instances),
        points=extent.points,
        seconds=extent.live_s,
        results=folder.resolve(),
        repository=repository.resolve(),
    )
    study = _study(question)
    if study.chosen is None:
        return [found, Finding(what=what, note="the tuner chose nothing")]
    with LiveBench(config=config, target=NO_TARGET, repository=repository, command=COMMAND) as bench:
        return [found, compared(what, study, grid, folder, bench, extent, progress)]


def compared(
    what: str, study: Study, grid: Grid, folder: Path, bench: Bench, extent: Extent, progress: StepProgress
) -> Finding:
    """The throughput of the study's choice over that of the grid's best, measured in turn."""
    judged = judge(
        study,
        grid,
        folder,
        bench,
        looks=extent.looks,
        seconds=extent.trial_s,
        progress=lambda text: progress(text, False),
    )
    cost = f"{judged.live_points} points, {judged.live_s:.0f} s of load"
    return Finding.ratio(what, judged.ratio, f"{judged.tuned} over {judged.best}; the search took {cost}")


def _grid(extent: Extent, traffic: Traffic, path: Path, bench: LiveBench, progress: StepProgress) -> Grid:
    planned = candidates(extent.sizes, extent.delays_us, [(count, None) for count in extent.instances])
    grid = stored(path, extent.tuned, traffic, COMMAND, len(planned))
    return measure(
        grid,
        planned,
        path,
        bench,
        seconds=extent.trial_s,
        until=math.inf,
        progress=lambda text: progress(text, False),
    )


def _study(question: Question) -> Study:
    """Run `perf.tune` as a user would; raises `Failure` if it ended with an error."""
    options = [question.model, "--load", str(question.traffic), "--p99-ms", f"{question.target.latency_ms:g}"]
    options += ["--instances", str(question.instances), "--points", str(question.points)]
    options += ["--seconds", f"{question.seconds:g}", "--repository", str(question.repository)]
    ran = later_stage("perf.tune", *options, "--results", str(question.results))
    print(ran.stdout, flush=True)
    study = Study.read(question.record) if question.record.exists() else None
    # A search that found nothing ends with code 1, as an error does, but leaves a finished study.
    if study is None or not study.limit or ran.returncode not in (0, 1):
        raise Failure(f"perf.tune {' '.join(options)} ended with {ran.returncode}: {ran.stderr.strip()}")
    return study
