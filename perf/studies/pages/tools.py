"""The tables about the user's tools: pure functions of the records in git."""

import json
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perf.measure import interleaved
from perf.records import file
from perf.records.study import Study
from perf.report.__main__ import summarise
from perf.report.sweep.table import markdown as report_markdown
from perf.report.sweep.verdict import sentences
from perf.simulate.costs import ASLEEP, LATE_US, cooled
from perf.stats import bootstrap
from perf.studies.archive import unpacked
from perf.studies.grid import judgement
from perf.studies.grid import record as grid_record
from perf.studies.packing.__main__ import HEURISTICS
from perf.studies.pages.table import RESULTS, ROOT, record_json, rows_markdown
from perf.studies.pauses import Pauses
from perf.studies.prediction import comparison
from perf.studies.prediction.comparison import MODELS
from perf.tune.trials import last_rounds

README = ROOT / "perf" / "results" / "readme"
GRIDS = RESULTS / "grid"
TUNED_STUDY = GRIDS / "simulated_accelerator.closed-32.throughput.p99-55ms.json"
LATER_ROUNDS = "grid/simulated_accelerator.closed-32.p99-55ms.later.json"
PAUSES_MS = (4, 8, 16)


def demo() -> str:
    """What `make demo` says of dynamic batching, for the first two models."""
    lines = []
    for compared in summarise(README).comparisons:
        if compared.model in ("simulated_accelerator", "ranker"):
            first = next(iter(sentences(compared)))
            lines += [compared.model, *textwrap.wrap(first, 110, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join(["```", *lines, "```"])


def batching(model: str) -> str:
    """The sweep of one model over its configurations."""
    (found,) = (comparison for comparison in summarise(README).comparisons if comparison.model == model)
    return report_markdown(found)


def tuned() -> str:
    """The tuned configuration against the one to beat, in the study and measured again later."""
    study = Study.read(TUNED_STUDY)
    final, against, _ = last_rounds(study.trials)
    later = later_rounds()
    rows: list[tuple[str, str, str, str, str, object]] = []
    for title, trials in (("tuned", final), ("current", against)):
        gain = interleaved.gain(final, against, lambda trial: trial.throughput_rows_per_s) if title == "tuned" else ""
        rows.append(
            (
                "in the study",
                f"{title}: {trials[0].candidate}",
                f"{statistics.mean(trial.throughput_rows_per_s for trial in trials):.1f}",
                f"{sum(trial.requests for trial in trials):,}",
                f"{sum(trial.late for trial in trials):,}",
                gain,
            )
        )
    for title, name in (("tuned", "tuned"), ("current", "default")):
        points = later[name]
        gain = _later_gain(later) if title == "tuned" else ""
        rate = statistics.mean(point.throughput_rows_per_s for point in points)
        requests, late = sum(point.requests for point in points), sum(point.late for point in points)
        row = ("the next day", f"{title}: {points[0].candidate}", f"{rate:.1f}", f"{requests:,}", f"{late:,}", gain)
        rows.append(row)
    titles = ("measured", "configuration", "rows/s", "requests", "over 55 ms", "throughput, x current")
    return rows_markdown(titles, rows, left=2)


def later_rounds() -> dict[str, list[grid_record.GridTrial]]:
    """The rounds of `tuned`, `default` and `noise` that were measured a day after the study, in order."""
    points = file.read(RESULTS / LATER_ROUNDS, grid_record.LaterRounds).points
    return {name: [point for point in points if point.stage == name] for name in ("tuned", "default", "noise")}


def _later_gain(later: Mapping[str, Sequence[grid_record.GridTrial]]) -> str:
    rates = [[trial.throughput_rows_per_s for trial in later[name]] for name in ("tuned", "default")]
    return str(bootstrap.paired(*rates))


def judgements() -> list[judgement.GridJudgement]:
    """The tuner's choices against the best of full grids."""
    return [file.read(path, judgement.GridJudgement) for path in sorted(GRIDS.glob("*.judged.json"))]


def judged() -> str:
    """The tuner's choices against the best of full grids, both measured again in turn."""
    titles = ("model, target", "best of the grid", "tuned", "tuned / best", "worst p99 of tuned", "cost of tuning")
    rows = [
        (
            f"{judged.model}, {judged.load}, p99 <= {judged.sla.latency_ms:g} ms",
            str(judged.best),
            str(judged.tuned),
            str(judged.ratio),
            f"{max(point.p99_ms for point in judged.of(judgement.TUNED)):.1f} ms",
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


def predictions() -> str:
    """How many predictions of the simulation hold."""
    with unpacked(RESULTS / "prediction.jsonl") as folder:
        return comparison.markdown(folder)


def pauses() -> str:
    """What pauses cost, by model, beside what is simulated."""
    found = [file.read(RESULTS / "pauses" / f"{model}.json", Pauses) for model in MODELS]

    def shares(share: Callable[[int], float]) -> str:
        return ", ".join(f"{share(pause):.2f}" for pause in PAUSES_MS)

    rows = [
        (
            "way of a lone request: few Poisson arrivals / closed loop of one",
            *(f"x {model.way:.1f}" for model in found),
            f"x {ASLEEP}",
        ),
        (
            "dispatch in that closed loop, and after 4 ms of pause",
            *(f"{model.dispatched_us(None):.0f}, {model.dispatched_us(4):.0f} us" for model in found),
            "the ramp's own",
        ),
        (
            "how late a thread that sleeps for 5 ms wakes up under load, mean",
            *(f"{model.late_us:.0f} us" for model in found),
            f"{LATE_US:.0f} us",
        ),
        (
            "how much longer one row takes after 32 ms of pause",
            *(f"{model.cold_us:.0f} us" for model in found),
            "the ramp's own",
        ),
        (
            "share of that after 4, 8 and 16 ms",
            *(shares(model.cooled) if model.cold_us else "" for model in found),
            shares(lambda pause: cooled(pause * 1e3) / cooled(32e3)),
        ),
    ]
    return rows_markdown(("", *MODELS, "simulated"), rows)


def packed_devices() -> dict[str, int]:
    """Devices by algorithm, over all workloads."""
    workloads = record_json("pack/study.json")["workloads"]
    return {name: sum(workload["devices"][name] for workload in workloads) for name in workloads[0]["devices"]}


def packing() -> str:
    """Devices that each packing algorithm needs."""
    total = packed_devices()
    workloads = rows_markdown(
        ("algorithm", "devices", "x exact"),
        [(name, count, f"{count / total['exact']:.3f}") for name, count in total.items()],
    )
    names = (*HEURISTICS, "improved", "exact")
    plain = rows_markdown(
        ("plain problem", "items", *names, "bound", "optimum"),
        [
            (
                f"{problem['kind']} {problem['seed']}",
                problem["items"],
                *(problem["bins"][name] for name in names),
                problem["bound"],
                problem["optimum"] or "",
            )
            for problem in record_json("pack/study.json")["plain"]
        ],
    )
    return f"{workloads}\n\n{plain}"


def interference() -> str:
    """What two models on the same cores do to each other."""
    rows = []
    for path in sorted((RESULTS / "pack").glob("interference.*.json")):
        record = json.loads(path.read_text())
        factors = ", ".join(f"{factor:.2f}" for factor in record["derived"]["factors"])
        rows.append(
            (" and ".join(f"`{model}`" for model in record["models"]), factors, f"{record['derived']['gain']:.2f}")
        )
    return rows_markdown(("models", "executions take x", "throughput together / in turns"), rows)


def memory_estimate() -> str:
    """Memory that was estimated and measured, at every node of each model."""
    rows = []
    for path in sorted((RESULTS / "memory" / "estimate").glob("*.json")):
        sessions = json.loads(path.read_text()).get("sessions", [])
        if sessions:
            nodes, wrong = (
                sum(session["boundaries"] for session in sessions),
                sum(len(session["mismatches"]) for session in sessions),
            )
            rows.append((path.stem, len(sessions), f"{nodes:,}", wrong))
    return rows_markdown(("model", "sessions", "nodes compared", "mismatches"), rows)


def memory_lab() -> str:
    """Memory that each allocator holds, over all recorded inferences."""
    trials: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / "memory").glob("*.json")):
        for trial in json.loads(path.read_text())["trials"]:
            trials.setdefault(trial["allocator"], []).append(trial)
    rows = []
    for name, some in trials.items():
        held = [trial["held_over_load"] for trial in some]
        calls = (max(trial[key] for trial in some) for key in ("first_calls", "later_calls"))
        rows.append(
            (name, ", ".join(f"{value:.3f}" for value in (min(held), statistics.median(held), max(held))), *calls)
        )
    titles = ("allocator", "held / bound: least, median, most", "most device calls of a first pass", "of a later one")
    return rows_markdown(titles, rows)
