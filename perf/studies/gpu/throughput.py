"""Steps 3 and 4: rows per second by sweeps: batching and instances at 1 to 32 clients, and variants of precision."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from export.repository import REPOSITORY
from export.variant.report import later_stage
from perf.measure import sweep_run
from perf.measure.interleaved import in_order
from perf.measure.service_time_run import StepProgress
from perf.measure.sweep_run import Sweep
from perf.records.measurement import AnalyzerLoad, Measurement, Store, read
from perf.report.sweep.summary import BASELINE, Comparison, compare, ratio_of
from perf.stats.interval import Interval
from perf.studies.experiment import now, origin
from perf.studies.gpu.extent import ENCODER, Extent
from perf.studies.gpu.models import DYNAMIC, copied, encoder
from perf.studies.gpu.record import COMMAND, CUDA, NO_GPU, Finding, last_line
from perf.studies.interference import Interference, interference
from serve.launcher import LaunchError

CLIENTS = 16
CONFIG_NAMES = (BASELINE, DYNAMIC, "dynamic_2_instances")
# Rows per second over those without batching, with 16 clients and 2 rows a request, on an A100. Source: part 2 of the
# conceptual guide in triton-inference-server/tutorials.
PUBLISHED = {("text_recognition_512", DYNAMIC, 16): 3.27, ("text_recognition_512", "dynamic_2_instances", 16): 4.24}
FP16, TENSORRT = ("--precision", "fp16"), ("--accelerator", "tensorrt")
# What follows the model's name in that of the variant -> the options that make it.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "_fp16": FP16,
    "_tensorrt": TENSORRT,
    "_fp16_tensorrt": (*FP16, *TENSORRT),
}


def pair(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """Each model alone, then both together, on one server."""
    seconds, started = 2 * extent.trial_s, now()
    names, alone, together = interference(
        extent.pair,
        DYNAMIC,
        clients=CLIENTS,
        seconds=seconds,
        warm_up_s=extent.trial_s,
        progress=lambda text: progress(text, False),
    )
    record = Interference(
        models=names,
        config_name=DYNAMIC,
        clients=CLIENTS,
        seconds=seconds,
        alone=alone,
        together=together,
        **origin(COMMAND, started),
    )
    record.write(folder)
    first, second = names
    return [
        Finding(what=f"{first} and {second} together, over taking turns", value=record.gain, unit="x"),
        *(
            Finding(what=f"an execution of {name} beside the other, over alone", value=factor, unit="x")
            for name, factor in zip(names, record.factors, strict=True)
        ),
    ]


def batching(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """Every configuration of the recogniser over the one without batching."""
    sweep = _sweep(extent, extent.recogniser, CONFIG_NAMES, extent.clients, extent.repeats, rows=extent.rows)
    sweep_run.run(sweep, Store(folder), progress)
    (comparison,) = compare(read(folder))
    return list(_batching(comparison))


def _batching(comparison: Comparison) -> Iterator[Finding]:
    for clients in comparison.common_concurrencies:
        for row in (comparison.at(name, clients) for name in comparison.config_names):
            assert row is not None  # as it is common to all
            what = f"{row.model} {row.config_name}, {clients} clients"
            if row.config_name == BASELINE:
                yield Finding(what=what, value=row.throughput_rows_per_s, unit="rows/s", note="; ".join(row.marks))
                continue
            published = PUBLISHED.get((row.model, row.config_name, clients))
            notes = [f"{published} published for an A100" if published else "", *row.marks]
            yield Finding.ratio(f"{what}, over {BASELINE}", row.to_baseline, "; ".join(filter(None, notes)))


def precisions(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """Every variant of every model over its original, with as many clients as the sweep has at most."""
    found: list[Finding] = []
    for model in extent.precisions:
        repository = folder / "models"
        if model == ENCODER:
            encoder(model, repository, width=extent.encoder_width, layers=extent.encoder_layers)
        else:
            copied(model, repository)
        missing = {suffix: _made(extent, model, suffix, repository, folder) for suffix in VARIANTS}
        names = [model, *(f"{model}{suffix}" for suffix, why in missing.items() if not why)]
        failed = _measured(extent, names, repository, folder / "sweep", progress)
        found += _compared(model, {**missing, **failed}, folder / "sweep")
    return found


def _made(extent: Extent, model: str, suffix: str, repository: Path, folder: Path) -> str:
    """Make a variant; why there is none, or nothing."""
    options = VARIANTS[suffix]
    if TENSORRT[1] in options and extent.device != CUDA:
        return NO_GPU
    cache = ["--engine-cache", str((folder / "engines").resolve())] if TENSORRT[1] in options else []
    ran = later_stage("export.variant", model, *options, *cache, "--force", "--repository", str(repository.resolve()))
    return "" if ran.returncode == 0 else f"not made: {last_line(ran.stderr)}"


def _measured(
    extent: Extent, names: Sequence[str], repository: Path, results: Path, progress: StepProgress
) -> dict[str, str]:
    """Measure the models in turn; those whose server did not start, by suffix, with the reason."""
    failed: dict[str, str] = {}
    for repeat in range(1, extent.repeats + 1):
        for name in in_order(names, repeat, seed=0):
            if name.removeprefix(names[0]) in failed:
                continue
            # Measures the last of the repeats: the others have their records.
            sweep = _sweep(extent, name, (DYNAMIC,), extent.clients[-1:], repeat, repository)
            try:
                sweep_run.run(sweep, Store(results), progress)
            except LaunchError as error:
                if name == names[0]:
                    raise
                failed[name.removeprefix(names[0])] = f"not run: {str(error).splitlines()[0]}"
    return failed


def _compared(model: str, missing: Mapping[str, str], results: Path) -> Iterator[Finding]:
    rates: dict[str, dict[int, float]] = {}
    for record in read(results):
        if isinstance(record, Measurement):
            rates.setdefault(record.point.model, {})[record.point.repeat] = record.measured.throughput_rows_per_s
    original = rates[model]
    yield Finding(what=f"{model}, FP32", value=sum(original.values()) / len(original), unit="rows/s")
    for suffix, why in missing.items():
        what = f"{model}{suffix}, over FP32"
        ratio: Interval | None = None if why else ratio_of(rates[f"{model}{suffix}"], original)
        yield Finding(what=what, note=why) if why else Finding.ratio(what, ratio)


def _sweep(
    extent: Extent,
    model: str,
    config_names: tuple[str, ...],
    clients: Sequence[int],
    repeats: int,
    repository: Path = REPOSITORY,
    rows: int = 1,
) -> Sweep:
    loads = tuple(AnalyzerLoad(concurrency=count, request_rows=rows, window_ms=extent.window_ms) for count in clients)
    return Sweep(model=model, config_names=config_names, loads=loads, repeats=repeats, repository=repository)
