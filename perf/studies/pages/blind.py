"""The tables of blind cases: models that are made from a seed in the run that measures them."""

from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.grid.blind import BlindTuning
from perf.studies.grid.judgement import TUNED
from perf.studies.prediction import blind
from perf.studies.prediction.blind import BlindComparison, BlindRecord
from perf.studies.tables import rows_markdown

FOLDER = RESULTS / "blind"
NOTHING = "No run of all of it is on record yet."


def prediction_records() -> list[BlindRecord]:
    """The blind predictions in git."""
    return [file.read(path, BlindRecord) for path in sorted(FOLDER.glob("*/blind.json"))]


def tunings() -> list[BlindTuning]:
    """The blind tunings in git."""
    return [file.read(path, BlindTuning) for path in sorted(FOLDER.glob("*/tuning/*.json"))]


def predictions() -> str:
    """How many blind predictions are within the limits and in their intervals, and those that are not."""
    parts = []
    for record in prediction_records():
        lines = [f"- {line}" for line in blind.summary(record.points)]
        misses = [_miss(point) for point in record.points if not point.within]
        titles = ("miss", "load", "rows/s: predicted (interval), measured", "p50 ms", "p95 ms")
        table = rows_markdown(titles, misses, left=2) if misses else ""
        parts.append("\n".join([f"Seed {record.seed}, {record.started_at[:10]}:", "", *lines, "", table]))
    return "\n\n".join(parts) or NOTHING


def tuning() -> str:
    """The tuner on blind models: against the grid's best, its cost, and its gain measured again."""
    titles = (
        *("model, load, target", "best of the grid", "tuned", "tuned / best", "of level", "cost after the ramps"),
        *("gain printed", "gain again", "gates"),
    )
    rows = [_row(each) for each in tunings()]
    return rows_markdown(titles, rows, left=3) if rows else NOTHING


def _miss(point: BlindComparison) -> tuple[str, ...]:
    figures = (point.figures[name] for name in ("throughput", "p50", "p95"))
    return (f"`{point.model}`, {point.candidate}, {point.rows} rows", f"`{point.load}`", *map(blind.cell, figures))


def _row(each: BlindTuning) -> tuple[str, ...]:
    judged, of = each.judged, f"{each.model} (seed {each.seed}), {each.load}, p99 <= {each.p99_ms:g} ms"
    if judged is None:
        return (of, f"{each.feasible} meet the target", "none", "", "", "", "", "", "missed")
    printed, again = ("" if ratio is None else f"x {ratio}" for ratio in (each.printed, each.again))
    return (
        of,
        str(judged.best),
        str(judged.tuned),
        f"{judged.ratio} in {len(judged.of(TUNED))} rounds",
        judged.ratio.level_text,
        f"{judged.live_points} points, {judged.live_s:.0f} s of load, {judged.wall_s or 0:.0f} s in all",
        printed,
        again,
        "held" if each.passed else "missed",
    )
