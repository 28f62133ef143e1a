"""The verdict of a comparison: each configuration against another, in sentences with figures."""

from collections.abc import Iterable

from perf.report.sweep.summary import BASELINE, STEPS, WIDE, Comparison, Row, ratio_of
from perf.report.sweep.table import ends_of
from perf.stats.interval import Interval
from perf.stats.looks import anew
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER, Verdict, fits, level_of_each, verdict

# What a configuration adds; others are named.
LABELS = {"dynamic": "dynamic batching", "dynamic_2_instances": "a second instance"}
# A change of the compute time of a row below this share is not mentioned.
CHEAPER = 0.10
# Batches have formed if the rows per execution rise by more than this factor.
FORMED = 1.1
# Above this share of onnxruntime's throughput without a server, the cores are full.
NEAR_CEILING = 0.9
# What a share of the ceiling above 1 means.
ABOVE = (
    "a server cannot be faster than onnxruntime alone, so the machine was busier while the ceiling was measured. Do "
    "not use these shares; measure again on a quiet machine."
)


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
        against = STEPS.get(name, BASELINE)
        reference = comparison.at(against, concurrency) or comparison.at(BASELINE, concurrency)
        texts.append(_sentence(LABELS.get(name, name), row, reference, comparison))
    return tuple(texts) or (_alone(comparison.rows[-1]),)


def advice(comparison: Comparison) -> str:
    """What to do, at the highest common concurrency: use a configuration, keep the baseline, or measure more."""
    if not comparison.common_concurrencies or BASELINE not in comparison.config_names:
        return "nothing is compared with a baseline"
    concurrency = comparison.common_concurrencies[-1]
    baseline = comparison.at(BASELINE, concurrency)
    rows = [row for name in comparison.config_names[1:] if (row := comparison.at(name, concurrency))]
    if baseline is None or not rows:
        return "only the baseline was measured"
    found = {row.config_name: judged(row, baseline, comparison) for row in rows}
    faster = [row for row in rows if (each := found[row.config_name]) and each[1].word == FASTER]
    better = [row for row in faster if _adds(row, comparison)]
    if not better and all(row.once for row in (*rows, baseline)):
        ratios = _ratios(rows, baseline, comparison)
        return f"measured once: {ratios} the rows/s of the baseline at {concurrency} in flight"
    if not better:
        unsure = any(each is None or each[1].word == CANNOT_TELL for each in found.values())
        return "cannot tell yet which configuration is faster" if unsure else "keep the baseline"
    best = max(better, key=lambda row: row.throughput_rows_per_s)
    ratio, _ = judged(best, baseline, comparison) or (None, None)
    ends = ends_of(ratio, " to ")
    times = f"{ratio.value:.2f} x ({ends}) the rows/s of the baseline" if ratio else "faster"
    return f"use {best.config_name}: {times} at concurrency {concurrency}"


def _ratios(rows: Iterable[Row], baseline: Row, comparison: Comparison) -> str:
    """How many times the baseline each is: `dynamic 4.36 x`."""
    found = {row.config_name: judged(row, baseline, comparison) for row in rows}
    return ", ".join(f"{name} {each[0].value:.2f} x" for name, each in found.items() if each)


def once(comparisons: Iterable[Comparison]) -> str:
    """What points that were measured once do not say, and how to learn it; empty if there are none."""
    rows = [row for comparison in comparisons for row in comparison.rows]
    single = sum(row.once for row in rows)
    if not single:
        return ""
    points = "Every point was" if single == len(rows) else f"{single} of {len(rows)} points were"
    return (
        f"{points} measured once, the quick form: that gives ratios and no verdict. For a verdict: make demo (the "
        "demo's models, five repeats), or triton-batching measure MODEL --repeats 5 (any model)."
    )


def _adds(row: Row, comparison: Comparison) -> bool:
    """Whether a configuration is faster than the one that it adds to."""
    step = comparison.at(STEPS.get(row.config_name, BASELINE), row.load.concurrency)
    found = judged(row, step, comparison) if step else None
    return step is None or (found is not None and found[1].word == FASTER)


def basis(comparison: Comparison) -> tuple[str, ...]:
    """Sentences on the intervals, on points that need more repeats, and on the range of the ceiling."""
    wide = _wide(comparison)
    proposed = wide or any(row.verdict and row.verdict.more_rounds for row in comparison.rows if not row.once)
    return tuple(filter(None, (_level(comparison), wide, anew("repeats") if proposed else "", _ceiling(comparison))))


def judged(row: Row, reference: Row, comparison: Comparison) -> tuple[Interval, Verdict] | None:
    """The throughput of a row over that of another, and the verdict; None if no repeat has both."""
    level = level_of_each(comparison.compared_at(row.load.concurrency))
    ratio = ratio_of(row.throughput_by_repeat, reference.throughput_by_repeat, level=level)
    return None if ratio is None else (ratio, verdict(ratio, more_is_better=True))


def _level(comparison: Comparison) -> str:
    if all(row.once for row in comparison.rows):
        return ""
    compared = max(comparison.compared_at(row.load.concurrency) for row in comparison.rows)
    if compared < 2:
        return "An interval is Student's t of the repeats in pairs, at 95 %." if compared else ""
    return (
        f"Intervals are Student's t of the repeats in pairs, each at {100 * level_of_each(compared):.4g} %, so that "
        f"the {compared} of throughput at one concurrency hold together with 95 %, and so do those of p95."
    )


def _wide(comparison: Comparison) -> str:
    """How many more repeats the points need whose throughput is not known within `WIDE`."""
    wide = [row for row in comparison.rows if row.more_repeats != 0 and not row.once]
    if not wide:
        return ""
    needed = [row.repeats + row.more_repeats for row in wide if row.more_repeats is not None]
    remedy = f"a new sweep with about --repeats {max(needed)}" if len(needed) == len(wide) else "a quieter machine"
    points = f"{len(wide)} of {len(comparison.rows)} points"
    return f"The throughput of {points} is not known within {WIDE:.0%} (95 %): {remedy} would do."


def _ceiling(comparison: Comparison) -> str:
    top = comparison.ceiling
    if top is None:
        return ""
    above = sum(row.above_ceiling for row in comparison.rows)
    return (
        f"The ceiling is {top.throughput_rows_per_s:,.1f} rows/s, {top.low:,.1f} to {top.high:,.1f} over its rounds; a "
        "share of it holds for a machine of this speed."
    ) + (f" * {above} of {len(comparison.rows)} points are above it: {ABOVE}" if above else "")


def _sentence(label: str, row: Row, reference: Row | None, comparison: Comparison) -> str:
    found = judged(row, reference, comparison) if reference else None
    if reference is None or found is None:
        return _alone(row)
    ratio, outcome = found
    first = reference.config_name == BASELINE
    where = f"{'the baseline' if first else reference.config_name} at concurrency {row.load.concurrency}"
    ends = ends_of(ratio, " to ") or "equal repeats have no interval"
    alike = _why_not(row, reference, comparison) if fits(ratio) else ""
    caution = _caution(row, reference)
    if ratio.count < 2:
        return f"{label} against {where}: {ratio.value:.2f} x, measured once.{caution}"
    if outcome.word == CANNOT_TELL:
        more = outcome.more_rounds
        remedy = f": a new sweep with --repeats {ratio.count + more}" if more else ""
        seen = f" So far no difference above {outcome.margin:.0%}{alike}." if alike else ""
        words = f"{outcome.text('repeat')}{remedy}"
        return f"{label} against {where}: {ratio.value:.2f} x ({ends}), {words}.{seen}{caution}"
    if outcome.word == SAME:
        return f"{label}: {outcome} as {where} ({ratio.value:.2f} x, {ends}){alike}.{caution}"
    latency = ratio_of(row.p95_us_by_repeat, reference.p95_us_by_repeat, level=ratio.level)
    p95 = f", p95 {latency.value:.2f} x ({ends_of(latency, ' to ') or ends})" if latency else ""
    formed = outcome.word == FASTER and _formed(row, reference)
    why = f", because {_together(row, reference)}" if formed else ""
    return f"{label}: {outcome}, {ratio.value:.2f} x ({ends}) the rows/s of {where}{p95}{why}.{caution}"


def _why_not(row: Row, reference: Row, comparison: Comparison) -> str:
    """The reason for no gain, as far as the counters show it; may be empty."""
    dearer = row.infer_us_per_row / reference.infer_us_per_row if reference.infer_us_per_row else 0.0
    if reference.config_name != BASELINE:
        if dearer < 1.5:
            return ""
        return f": side by side, each row took {dearer:.1f} x as long, so its cores were already full (compute-bound)"
    if not _formed(row, reference):
        return f": {row.rows_per_execution:.1f} rows ran together, as before, so no batches formed"
    if dearer < 1 - CHEAPER:
        return ""
    full = ", so its cores are already full (compute-bound)" if _full(row, comparison) else ""
    return f": {_together(row, reference)}, but a row took {dearer:.2f} x the compute time{full}"


def _full(row: Row, comparison: Comparison) -> bool:
    """Whether the cores are full: close to the ceiling, or a second instance gains nothing."""
    if row.to_ceiling and row.to_ceiling.value >= NEAR_CEILING:
        return True
    second = comparison.at("dynamic_2_instances", row.load.concurrency)
    if second is None or second is row:
        return False
    found = judged(second, row, comparison)
    return found is not None and (fits(found[0]) or found[1].word == SLOWER)


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
    return f" Faulty: {' and '.join(marked)}, see the marks." if marked else ""
