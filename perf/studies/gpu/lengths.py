"""Step 4: requests of different length, padded by the server and as one flat tensor."""

from pathlib import Path

from perf.measure.service_time_run import StepProgress
from perf.studies.experiment import now, origin
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.record import COMMAND, Finding, difference
from perf.studies.padded.__main__ import resumed
from perf.studies.padded.__main__ import run as run_padded
from perf.studies.padded.record import CLIENT, SEPARATE, SPLIT, PaddedRecord
from perf.studies.padded.record import MIXES as PADDED_MIXES
from perf.studies.ragged.__main__ import run as run_ragged
from perf.studies.ragged.table import MIXES, ROUTES, RaggedExperiment, rows_of

SEED = 1


def lengths(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """The routes of both experiments over separate executions."""
    return [*_padded(extent, folder / "padded.json", progress), *_ragged(extent, folder / "ragged", progress)]


def _padded(extent: Extent, path: Path, progress: StepProgress) -> list[Finding]:
    if path.is_file():
        record = resumed(path, extent.trial_s)
    else:
        made = origin(COMMAND, now())
        record = PaddedRecord(**made, seed=SEED, seconds=extent.trial_s, errors={}, points=())
    kind = extent.padded
    record = run_padded(
        record,
        path,
        (kind,),
        extent.repeats,
        progress,
        mixes=[mix for mix in PADDED_MIXES if mix.name in extent.padded_lengths],
        count=extent.checked,
        device=extent.kind,
        tolerance=extent.tolerance,
    )
    ratios = [
        Finding.ratio(
            f"{kind} encoder, {mix}, padded with a budget, over {other}", record.ratio(kind, mix, SPLIT, other)
        )
        for mix in dict.fromkeys(point.mix for point in record.points)
        for other in (SEPARATE, CLIENT)
    ]
    what = f"{kind} encoder, padded: difference from onnxruntime on the CPU"
    return [difference(what, record.errors[kind], extent.tolerance), *ratios]


def _ragged(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    experiment = RaggedExperiment(
        model=extent.ragged,
        mixes=tuple(mix for mix in MIXES[extent.ragged] if mix.name in extent.lengths),
        routes=tuple(route for route in ROUTES if route.name in extent.routes),
        concurrency=extent.clients[-1],
        repeats=extent.repeats,
        window_ms=extent.window_ms,
    )
    run_ragged(experiment, folder, progress)
    rows = [row for row in rows_of(experiment, folder) if row.route != SEPARATE]
    return [
        Finding.ratio(
            f"{extent.ragged}, {row.mix}, {row.route}, over {SEPARATE}", row.to_separate, "; ".join(row.marks)
        )
        for row in rows
    ]
