"""The tables of requests that the server pads: rows per second of each route, and the gates."""

from perf.records import file
from perf.stats.interval import Interval
from perf.studies.archive import RESULTS
from perf.studies.padded import record as padded_record
from perf.studies.padded.__main__ import CHECKED
from perf.studies.padded.record import SEPARATE, SERVER, SPLIT, PaddedRecord
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
        (text, "not measured" if ratio is None else f"x {interval_text(ratio)}", f"x {least:g}", word(ratio, least))
        for text, ratio, least in padded_record.gates(measured)
    ]
    answers = ", ".join(f"{kind} {error:.1e}" for kind, error in measured.errors.items())
    return "\n".join(
        [
            rows_markdown(("gate", "measured", "at least", ""), rows),
            "",
            f"{CHECKED:,} requests of mixed length to each encoder were answered as onnxruntime answers them alone. "
            "The largest differences, as shares of the largest value:",
            f"{answers}.",
        ]
    )


def word(ratio: Interval | None, least: float) -> str:
    """Whether a gate is held or missed; surely only if the whole interval says so."""
    if ratio is None:
        return ""
    held = ratio.value >= least
    sure = ratio.bounded and (ratio.low >= least if held else ratio.high < least)
    return ("held" if held else "missed") + ("" if sure else ", but not surely")


def result() -> str:
    """The gain on the long tail in one line."""
    measured, parts = record(), []
    for kind in ("bert", "fixed", padded_record.SHIPPED):
        gains = [measured.ratio(kind, "long tail", route, SEPARATE) for route in (SERVER, SPLIT)]
        if known := [gain for gain in gains if gain is not None]:
            parts.append(f"x {interval_text(max(known, key=lambda gain: gain.value))} ({kind})")
    return "padded on a long tail against separate executions: " + ", ".join(parts)
