"""The tables of requests that the server pads: rows per second of each route, and the gates."""

from perf.records import file
from perf.studies.archive import RESULTS
from perf.studies.padded import record as padded_record
from perf.studies.padded.__main__ import CHECKED
from perf.studies.padded.record import SEPARATE, SPLIT, PaddedRecord, spread, word
from perf.studies.tables import interval_text, rich_markdown, rows_markdown


def record() -> PaddedRecord:
    """The measurement in git."""
    return file.read(RESULTS / "padded.json", PaddedRecord)


def routes() -> str:
    """Every encoder under every mix, on every route."""
    return rich_markdown(padded_record.table(record()))


def gates() -> str:
    """What the padded routes must reach, and what they reached; then the answers."""
    measured = record()
    rows = [
        (text, "" if ratio is None else f"x {interval_text(ratio)}", f"x {least:g}", word(ratio, least))
        for text, ratio, least in padded_record.gates(measured)
    ]
    answers = ", ".join(f"{kind} {error:.1e}" for kind, error in measured.errors.items())
    return "\n".join(
        [
            rows_markdown(("gate", "measured", "at least", ""), rows),
            "",
            f"Over the repeats the fastest rate of a route is up to {spread(measured):.0%} above its slowest.",
            "",
            f"{CHECKED:,} requests of mixed length to each encoder were answered as onnxruntime answers them alone.",
            "The largest differences, as shares of the largest value:",
            f"{answers}.",
        ]
    )


def result() -> str:
    """The gain of the exported configuration on the long tail in one line."""
    kinds = ("bert", "fixed", padded_record.SHIPPED)
    gains = {kind: record().ratio(kind, "long tail", SPLIT, SEPARATE) for kind in kinds}
    parts = (f"x {interval_text(gain)} ({kind})" for kind, gain in gains.items() if gain is not None)
    return "padded on a long tail against separate executions: " + ", ".join(parts)
