"""A day of arrivals: rates over time, read from a CSV file or generated."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perf.scale.curve import Values
from triton_batching.options import DAY_S
from triton_batching.terminal import Mistake

COLUMNS = ("time_s", "deployment", "rate_per_s")
MOST_RATE = 1e7
# A generated day: its lowest rate over its highest, and bursts a day.
NIGHT = 0.15
BURSTS = 6
# A burst multiplies the rate by up to this, rises in seconds to minutes, and lasts minutes.
BURST_PEAK = 1.5
# Slow drift of the rate from minute to minute: its standard deviation, and the time in which it is forgotten.
DRIFT, DRIFT_S = 0.05, 600.0
TOLD_EVERY_S = 10


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Arrivals of one deployment: from each of `times_s` on (rising, the first is 0) at `rates_per_s`."""

    times_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    def steps(self, step_s: float, length_s: float) -> Values:
        """The rate in each step of `step_s` up to `length_s`; the last rate holds to the end."""
        starts = np.arange(math.ceil(length_s / step_s)) * step_s
        found: Values = np.array(self.rates_per_s)[np.searchsorted(self.times_s, starts, side="right") - 1]
        return found


def read(path: Path) -> Mapping[str, Rates]:
    """The rates of a file by deployment; raises `Mistake` with the line of what is wrong."""
    try:
        lines = csv.reader(io.StringIO(path.read_text()), strict=True)
        rows = [(lines.line_num, row) for row in lines if row]
    except OSError as error:
        raise Mistake(f"{path}: cannot be read ({error.strerror}). Name a CSV file of rates.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"{path}: not a CSV file ({error}). Write lines such as 0,ranker,120.") from error
    if not rows or tuple(cell.strip() for cell in rows[0][1]) != COLUMNS:
        raise Mistake(f"{path}: its first line must be {','.join(COLUMNS)}.")
    found: dict[str, list[tuple[float, float]]] = {}
    for number, row in rows[1:]:
        time_s, name, rate = _row(row, f"{path}: line {number}")
        of_name = found.setdefault(name, [])
        if of_name and time_s <= of_name[-1][0]:
            raise Mistake(f"{path}: line {number}: {time_s:g} s is not after {of_name[-1][0]:g} s. Sort by time.")
        of_name.append((time_s, rate))
    if not found:
        raise Mistake(f"{path}: has no rates. Write lines such as 0,ranker,120.")
    for name, of_name in found.items():
        if of_name[0][0] != 0:
            raise Mistake(f"{path}: {name} begins at {of_name[0][0]:g} s. Give its rate at 0 s.")
    return {
        name: Rates(times_s=tuple(t for t, _ in rows), rates_per_s=tuple(r for _, r in rows))
        for name, rows in found.items()
    }


def _row(row: list[str], where: str) -> tuple[float, str, float]:
    try:
        time, name, rate = (cell.strip() for cell in row)
        time_s, rate_per_s = float(time), float(rate)
    except ValueError as error:
        raise Mistake(
            f"{where}: '{','.join(row)[:60]}' is not a time, a name and a rate. Write 0,ranker,120."
        ) from error
    if not (0 <= time_s <= 366 * DAY_S and 0 <= rate_per_s <= MOST_RATE and name):
        raise Mistake(
            f"{where}: a time is 0 to a year of seconds, a rate 0 to {MOST_RATE:,.0f} per second. Correct it."
        )
    return time_s, name, rate_per_s


def diurnal(peak_per_s: float, *, seed: int, length_s: float = DAY_S) -> Rates:
    """A generated day: low at night, a peak in the afternoon, with drift and a few bursts."""
    rng = np.random.default_rng(seed)
    times = np.arange(0, length_s, TOLD_EVERY_S, dtype=np.float64)
    phase = 2 * np.pi * (times / length_s - 15 / 24)
    # A second wave makes the morning and the evening differ.
    wave = 0.5 * (1 + 0.9 * np.cos(phase) + 0.1 * np.cos(2 * phase + 1.0))
    rates = peak_per_s * (NIGHT + (1 - NIGHT) * wave)
    keep = math.exp(-TOLD_EVERY_S / DRIFT_S)
    shocks = rng.standard_normal(len(times)) * DRIFT * math.sqrt(1 - keep**2)
    drift = 0.0
    for index, shock in enumerate(shocks.tolist()):
        drift = keep * drift + shock
        rates[index] *= math.exp(drift)
    for _ in range(BURSTS):
        start, rise, hold, fall = (
            rng.uniform(0, length_s),
            rng.uniform(20, 300),
            rng.uniform(120, 1200),
            rng.uniform(60, 900),
        )
        more = rng.uniform(0.2, BURST_PEAK - 1)
        ends = [start, start + rise, start + rise + hold, start + rise + hold + fall]
        rates *= 1 + more * np.interp(times, ends, [0.0, 1.0, 1.0, 0.0])
    return Rates(times_s=tuple(times.tolist()), rates_per_s=tuple(np.round(rates, 3).tolist()))
