"""The verdict of a comparison: the gain of each configuration over another, in sentences with figures."""

from perf.report.sweep.marks import SPREAD_LIMIT
from perf.report.sweep.summary import BASELINE, Comparison, Ratio, Row

# What a configuration adds, and the configuration to compare it with; others are compared with the baseline.
STEPS = {"dynamic": ("dynamic batching", BASELINE), "dynamic_2_instances": ("a second instance", "dynamic")}
# A/A noise: a difference is a gain only above this and above the spread of the measurements.
LEAST_NOISE = 0.03
# Batches have formed if the rows per execution rise by more than this factor.
FORMED = 1.1
# Above this share of onnxruntime's throughput without a server, the cores are full.
NEAR_CEILING = 0.9


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """A sentence per configuration except the baseline, at the highest common concurrency."""
    if not comparison.common_concurrencies:
        return ("No concurrency was measured for every configuration, so nothing is compared.",)
    concurrency = comparison.common_concurrencies[-1]
    texts = []
    for name in comparison.config_names:
        row = comparison.at(name, concurrency)
        if row is None or name == BASELINE:
            continue
        label, against = STEPS.get(name, (name, BASELINE))
        reference = comparison.at(against, concurrency) or comparison.at(BASELINE, concurrency)
        texts.append(_sentence(label, row, reference, comparison))
    return tuple(texts) or (_alone(comparison.rows[-1]),)


def gained(row: Row, reference: Row) -> int:
    """1 for more rows per second than the reference, -1 for fewer, 0 if the difference is within the spread."""
    ratio = Ratio.of(row.throughput_by_repeat, reference.throughput_by_repeat)
    spreads = [max(each.throughput_spread or 0.0, each.window_spread) for each in (row, reference)]
    noise = max(LEAST_NOISE, *spreads)
    if ratio is None or ratio.low <= 1 <= ratio.high or abs(ratio.median - 1) <= noise:
        return 0
    return 1 if ratio.median > 1 else -1


def _sentence(label: str, row: Row, reference: Row | None, comparison: Comparison) -> str:
    ratio = Ratio.of(row.throughput_by_repeat, reference.throughput_by_repeat) if reference else None
    if reference is None or ratio is None:
        return _alone(row)
    first = reference.config_name == BASELINE
    against = "the baseline" if first else reference.config_name
    where = f"{against} at concurrency {row.load.concurrency}"
    outcome = gained(row, reference)
    if outcome == 0:
        why = _why_not(row, reference, comparison)
        caution = _caution(row, reference)
        return f"{label}: nothing gained over {where} ({ratio.median:.2f} x, within the spread){why}.{caution}"
    latency = Ratio.of(row.p95_us_by_repeat, reference.p95_us_by_repeat)
    p95 = f" (p95 {latency.median:.2f} x)" if latency else ""
    another = "" if first or outcome < 0 else "another "
    end = ", a loss" if outcome < 0 else f", because {_together(row, reference)}" if _formed(row, reference) else ""
    return f"{label}: {another}{ratio.median:.2f} x the rows/s of {where}{p95}{end}.{_caution(row, reference)}"


def _why_not(row: Row, reference: Row, comparison: Comparison) -> str:
    """The reason for no gain, as far as the counters show it; may be empty."""
    dearer = row.infer_us_per_row / reference.infer_us_per_row if reference.infer_us_per_row else 0.0
    if reference.config_name != BASELINE:
        if dearer < 1.5:
            return ""
        return f": side by side, each row took {dearer:.1f} x as long, so its cores were already full (compute-bound)"
    if not _formed(row, reference):
        return f": {row.rows_per_execution:.1f} rows ran together, as before, so no batches formed"
    if dearer < 1 - SPREAD_LIMIT:
        return ""
    full = ", so its cores are already full (compute-bound)" if _full(row, comparison) else ""
    return f": {_together(row, reference)}, but a row took {dearer:.2f} x the compute time{full}"


def _full(row: Row, comparison: Comparison) -> bool:
    """Whether the cores are full: close to the ceiling, or a second instance gains nothing."""
    if row.to_ceiling and row.to_ceiling.median >= NEAR_CEILING:
        return True
    second = comparison.at("dynamic_2_instances", row.load.concurrency)
    return second is not None and second is not row and gained(second, row) <= 0


def _formed(row: Row, reference: Row) -> bool:
    return row.rows_per_execution > FORMED * reference.rows_per_execution


def _together(row: Row, reference: Row) -> str:
    return f"{row.rows_per_execution:.1f} rows ran together instead of {reference.rows_per_execution:.1f}"


def _alone(row: Row) -> str:
    return (
        f"{row.config_name}: {row.throughput_rows_per_s:,.1f} rows/s at concurrency {row.load.concurrency}; no other "
        "configuration was measured."
    )


def _caution(row: Row, reference: Row) -> str:
    marked = [each.config_name for each in (row, reference) if each.marks]

    return f" Not stable: {' and '.join(marked)}, see the marks." if marked else ""
