"""The tables about the user's tools: pure functions of the records in git."""

import functools
import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence

from perf.records import file
from perf.records.last_comparison import THROUGHPUT, last_comparison
from perf.records.study import Study, Trial
from perf.report.command import summarise
from perf.report.sweep.summary import Comparison
from perf.report.sweep.table import markdown as report_markdown
from perf.report.sweep.verdict import basis, sentences
from perf.stats import rounds
from perf.stats.interval import Interval
from perf.stats.verdict import verdict
from perf.studies.archive import RESULTS, unpacked
from perf.studies.grid import record as grid_record
from perf.studies.interference import Interference
from perf.studies.packing import __main__ as packing_experiment
from perf.studies.prediction import comparison
from perf.studies.prediction.comparison import FILE, ComparedPoint, ComparedRecord
from perf.studies.tables import rows_markdown

DEMO = RESULTS / "demo.jsonl"
GRIDS = RESULTS / "grid"
TUNED_STUDY = GRIDS / "simulated_accelerator.closed-32.throughput.p99-55ms.json"
LATER_ROUNDS = "grid/simulated_accelerator.closed-32.p99-55ms.later.json"


def demo() -> str:
    """What `make demo` prints about dynamic batching."""
    lines = []
    for of_model in demo_comparisons():
        first = next(iter(sentences(of_model)))
        lines += [of_model.model, *textwrap.wrap(first, 110, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join(["```", *lines, "```"])


@functools.cache
def demo_comparisons() -> Sequence[Comparison]:
    """The sweeps of `make demo`, one model each."""
    with unpacked(DEMO) as folder:
        return summarise(folder).comparisons


def batching(model: str) -> str:
    """The sweep of one model over its configurations."""
    (of_model,) = (each for each in demo_comparisons() if each.model == model)
    return "\n".join([report_markdown(of_model), "", *basis(of_model)])


def tuned() -> str:
    """The tuned configuration against the one to beat, in the study and measured again later."""
    study = Study.read(TUNED_STUDY)
    compared = last_comparison(study)
    gain = compared.gain(THROUGHPUT)
    later = later_rounds()
    ratio = _later_gain(later)
    word = verdict(ratio, more_is_better=True)
    rows = [
        _tuned_row("in the study", "tuned", compared.choice, gain.interval, gain.interval.level_text, gain.verdict),
        _tuned_row("in the study", "current", compared.current),
        _tuned_row("the next day", "tuned", later["tuned"], ratio, ratio.level_text, word),
        _tuned_row("the next day", "current", later["default"]),
    ]
    titles = ("measured", "configuration", "rows/s", "requests", "over 55 ms", "throughput, x current", "interval of")
    return rows_markdown((*titles, "than current"), rows, left=2)


def _tuned_row(
    when: str, title: str, trials: Sequence[Trial | grid_record.GridTrial], *gain: object
) -> tuple[object, ...]:
    return (
        when,
        f"{title}: {trials[0].candidate}",
        f"{statistics.mean(trial.throughput_rows_per_s for trial in trials):.1f}",
        f"{sum(trial.requests for trial in trials):,}",
        f"{sum(trial.late for trial in trials):,}",
        *(gain or ("", "", "")),
    )


def _with_verdict(ratio: Interval) -> tuple[str, str]:
    """A ratio of throughputs with its interval, and what that means."""
    return str(ratio), str(verdict(ratio, more_is_better=True))


def later_rounds() -> dict[str, list[grid_record.GridTrial]]:
    """The rounds of `tuned`, `default` and `noise` that were measured a day after the study, in order."""
    trials = file.read(RESULTS / LATER_ROUNDS, grid_record.LaterRounds).points
    return {name: [trial for trial in trials if trial.stage == name] for name in ("tuned", "default", "noise")}


def _later_gain(later: Mapping[str, Sequence[grid_record.GridTrial]]) -> Interval:
    rates = [[trial.throughput_rows_per_s for trial in later[name]] for name in ("tuned", "default")]
    return rounds.paired(*rates)


def judgements() -> list[grid_record.GridJudgement]:
    """The tuner's choices against the best of full grids."""
    return [file.read(path, grid_record.GridJudgement) for path in sorted(GRIDS.glob("*.judged.json"))]


def judged() -> str:
    """The tuner's choices against the best of full grids, both measured again in turn."""
    titles = (
        *("model, target", "best of the grid", "tuned", "tuned / best", "than the best"),
        *("worst p99 of tuned", "cost of tuning"),
    )
    rows = [
        (
            f"{judged.model}, {judged.load}, p99 <= {judged.sla.latency_ms:g} ms",
            str(judged.best),
            str(judged.tuned),
            *_with_verdict(judged.ratio),
            f"{max(point.p99_ms for point in judged.of(grid_record.TUNED)):.1f} ms",
            f"{judged.live_points} trials, {judged.live_s:.0f} s",
        )
        for judged in judgements()
    ]
    return rows_markdown(titles, rows, left=3)


def fleet() -> str:
    """Closed loops of many processes."""
    titles = (
        "processes x rows",
        "configuration",
        "transport",
        "times x",
        "rows/s",
        "mean, p50, p99 ms",
        "rows/execution",
    )
    with unpacked(RESULTS / "fleet.jsonl") as folder:
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rows = []
    for record in sorted(
        records, key=lambda record: (record["time_scale"], record["load"]["rows"], record["load"]["workers"])
    ):
        outcome, load = record["outcome"], record["load"]
        latencies = (outcome["mean_us"], *(outcome["percentiles_us"][percent] for percent in ("50", "99")))
        rows.append(
            (
                f"{load['workers']} x {load['rows']}",
                record["config_name"] or "config.pbtxt",
                record["transport"],
                f"{record['time_scale']:.3g}",
                f"{outcome['rows_per_s']:.1f}",
                ", ".join(f"{us / 1e3:.1f}" for us in latencies),
                f"{record['counted']['rows'] / record['counted']['executions']:.2f}",
            )
        )
    return rows_markdown(titles, rows, left=3)


def compared_points() -> tuple[ComparedPoint, ...]:
    """The predictions of the simulation beside measurements."""
    with unpacked(RESULTS / "prediction.jsonl") as folder:
        return file.read(folder / FILE, ComparedRecord).points


def predictions() -> str:
    """How many predictions of the simulation hold."""
    with unpacked(RESULTS / "prediction.jsonl") as folder:
        return comparison.markdown(folder)


def packing_record() -> packing_experiment.PackingRecord:
    """The packings in git."""
    return file.read(RESULTS / "pack" / packing_experiment.NAME, packing_experiment.PackingRecord)


def packing() -> str:
    """Devices that each packing algorithm needs."""
    devices = packing_record().devices
    return rows_markdown(
        ("algorithm", "devices", "x improved"),
        [(name, count, f"{count / devices['improved']:.3f}") for name, count in devices.items()],
    )


def interference_records() -> list[Interference]:
    """The pairs of models in git."""
    return [Interference.read(path) for path in sorted((RESULTS / "pack").glob("interference.*.json"))]


def interference() -> str:
    """How much two models on the same cores slow each other down."""
    rows = []
    for record in interference_records():
        factors = ", ".join(f"{factor:.2f}" for factor in record.factors)
        rows.append((" and ".join(f"`{model}`" for model in record.models), factors, f"{record.gain:.2f}"))
    return rows_markdown(("models", "executions take x", "throughput together / in turns"), rows)
