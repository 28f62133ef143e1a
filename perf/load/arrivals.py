"""When requests are due in an open loop: seconds from the start, drawn or read from a file."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perf.records.offered_load import Load
from triton_batching.terminal import Mistake

Times = NDArray[np.float64]
COOL_DOWN_S = 1.0


def arrivals(load: Load) -> Times:
    """Due times of the requests of all processes in seconds, rising: (n,). The window begins at `warm_up_s`.

    The warm-up of a trace is a Poisson stream at its mean rate, that of a ramp one at its first rate. A drawn load goes
    on for `COOL_DOWN_S` after the window, so that the last requests of the window meet the same load as the others.
    """
    rng = np.random.default_rng(load.seed)
    end = load.warm_up_s + load.duration_s + COOL_DOWN_S
    if load.pattern == "ramp":
        before = drawn("poisson", load.rate_per_s, load.warm_up_s, 1.0, rng)
        counts = drawn("poisson", 1.0, max(load.rate_per_s, load.rate_to_per_s) * (end - load.warm_up_s), 1.0, rng)
        rising = load.warm_up_s + climbing(counts, load.rate_per_s, load.rate_to_per_s, load.duration_s)
        return np.concatenate([before, rising[rising < end]])
    if load.trace is None or load.pattern != "trace":
        return drawn(load.pattern, load.rate_per_s, end, load.cv2, rng)
    recorded = read_trace(load.trace)
    recorded = recorded[recorded < load.duration_s]
    rate = len(recorded) / max(recorded[-1], 1e-9) if len(recorded) else 0.0
    before = drawn("poisson", rate, load.warm_up_s, 1.0, rng) if rate else np.empty(0)
    return np.concatenate([before, recorded + load.warm_up_s])


def climbing(counts: Times, first: float, last: float, rise_s: float) -> Times:
    """The times at which a stream has had `counts` arrivals, if its rate rises from `first` to `last` in `rise_s` s.

    This turns the arrivals of a Poisson stream of rate 1 into those of a Poisson stream with that rate (time change;
    Çinlar, Introduction to Stochastic Processes, 1975, 4.7).
    """
    inside = np.minimum(counts, (first + last) / 2 * rise_s)
    slope = (last - first) / rise_s
    # The root of first x t + slope x t^2 / 2 = inside, in the form that allows a slope of 0.
    risen = 2 * inside / (first + np.sqrt(first**2 + 2 * slope * inside))
    return np.asarray(risen + (counts - inside) / last, dtype=np.float64)


def drawn(pattern: str, rate: float, end: float, cv2: float, rng: np.random.Generator) -> Times:
    """Due times below `end` seconds with mean gap 1 / `rate`, for the patterns constant, poisson and gamma.

    A gamma distribution of shape k has the squared coefficient of variation 1 / k, so shape 1 / `cv2` and scale
    `cv2` / `rate` keep the mean.
    """
    if pattern == "constant":
        return np.arange(1, int(end * rate) + 1) / rate
    shape = 1.0 if pattern == "poisson" else 1.0 / cv2
    parts: list[Times] = [np.empty(0)]
    reached = 0.0
    while reached < end:
        gaps = rng.gamma(shape, 1.0 / (shape * rate), max(64, int(end * rate)))
        parts.append(reached + np.cumsum(gaps))
        reached = float(parts[-1][-1])
    times = np.concatenate(parts)
    return times[times < end]


def read_trace(path: Path) -> Times:
    """The arrival times in a file, shifted so that the first is 0: (n,). Raises `Mistake`.

    The file has one number of seconds a line; # begins a comment.
    """
    try:
        lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
        times = np.array([float(line) for line in lines if line], dtype=np.float64)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Mistake(f"{path}: not a trace of arrivals ({reason}). Write one number of seconds a line.") from error
    if not len(times) or not np.all(np.isfinite(times)) or np.any(np.diff(times) < 0):
        raise Mistake(f"{path}: needs at least one arrival time, all finite and in rising order. Sort them.")
    return np.asarray(times - times[0], dtype=np.float64)
