"""Whether something grows: leaks of known size are found, and noise without a leak is not taken for one."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from perf.stats.verdict import CANNOT_TELL
from perf.studies.soak.growth import ALLOWED_BYTES, BYTES, FLAT, GROWS, Growth, Values, judge

MIB = 1 << 20
# A quarter of an hour, read every six seconds; the first five minutes are warm-up.
TIMES = np.arange(0, 900, 6.0)
WARM_S = 300.0


def verdict(values: NDArray[Any], unit: str = BYTES, times: Values = TIMES) -> Growth:
    return judge("it", unit, times.tolist(), values.tolist(), warm_s=WARM_S, of=60)


def hanging_together(seed: int, scale: float) -> Values:
    """Noise of which each reading keeps most of the one before."""
    rng = np.random.default_rng(seed)
    values = np.zeros(len(TIMES))
    for number in range(1, len(values)):
        values[number] = 0.7 * values[number - 1] + rng.normal(0, scale)
    return values


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_memory_is_found_in_noise(seed: int) -> None:
    # 100 MiB that grow by 2 MiB a minute: 20 in the window, where 9.5 are allowed.
    leak = 100 * MIB + 2 * MIB / 60 * TIMES + hanging_together(seed, MIB)
    growth = verdict(leak)
    assert growth.verdict == GROWS
    assert growth.growth == pytest.approx(2 * MIB / 60 * growth.window_s, rel=0.1)
    assert growth.low is not None
    assert growth.high is not None
    assert growth.low < 2 * MIB / 60 * growth.window_s < growth.high


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_flat(seed: int) -> None:
    assert verdict(100 * MIB + hanging_together(seed, MIB)).verdict == FLAT


def test_one_lost_descriptor_a_minute_is_found() -> None:
    rng = np.random.default_rng(0)
    busy = rng.integers(0, 4, len(TIMES))
    assert verdict(20 + TIMES // 60 + busy, "descriptors").verdict == GROWS
    assert verdict(20.0 + busy, "descriptors").verdict == FLAT


def test_what_grows_in_the_warm_up_alone_is_flat() -> None:
    assert verdict(100 * MIB + 50 * MIB * np.minimum(TIMES / WARM_S, 1)).verdict == FLAT


def test_what_never_changes_is_flat() -> None:
    assert verdict(np.full(len(TIMES), 7.0), "threads").verdict == FLAT


def test_a_few_readings_far_out_do_not_count() -> None:
    values = np.full(len(TIMES), 100.0 * MIB)
    values[-5:] = 300 * MIB
    assert verdict(values).growth == 0


def test_of_too_little_nothing_is_said() -> None:
    few = TIMES[TIMES >= WARM_S][:9]
    growth = verdict(few * MIB, times=few)
    assert growth.verdict == CANNOT_TELL
    assert (growth.low, growth.high, growth.readings) == (None, None, 9)
    assert verdict(np.array([]), times=np.array([])).verdict == CANNOT_TELL


def test_wide_noise_cannot_tell() -> None:
    rng = np.random.default_rng(0)
    values = 10 * MIB + rng.normal(0, 20 * ALLOWED_BYTES, len(TIMES))
    assert verdict(values).verdict == CANNOT_TELL
