"""Goodput: the simulated instance, the search for the edge, and the order of the ways to batch over several seeds."""

import functools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.load.variant import read as read_config
from perf.records.file import RecordError
from perf.simulate.batcher.request import MS, Request
from perf.simulate.batcher.request_source import Arrivals
from perf.simulate.batcher.rules import Rules
from perf.simulate.batcher.simulation import simulate
from perf.stats.interval import Interval
from perf.stats.looks import anew
from perf.stats.rounds import paired
from perf.stats.verdict import CANNOT_TELL, FASTER, SAME, SLOWER, verdict
from perf.studies.goodput.__main__ import main
from perf.studies.goodput.contender import AIMD, DEADLINE, GREEDY, HALF, NONE, SimulatedDevice, contenders
from perf.studies.goodput.record import GoodputSearch, MeasuredRate, load
from perf.studies.goodput.search import CLOSE, MOST, RateTrial, edge, following, swept
from perf.studies.goodput.simulated import ends, goodput, settle
from perf.studies.goodput.stream import WARM_UP, ArrivalStream
from perf.studies.goodput.table import TITLES, GoodputRow, cells, lines, markdown, more_seeds
from serve.policies.batch_policy import Aimd, All, Deadline
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

CONFIG = read_config("simulated_accelerator", None)
# l(b) = 5.072 + 1.053 b ms, which the reference goodputs were found with.
REFERENCE = SimulatedDevice(fixed_s=0.005072, row_s=0.001053)
SLO_S, REQUESTS = 0.025, 500
# With five seeds greedy with half the cap is 0.968 (0.937 to 1.0004) of greedy, which cannot tell.
SEEDS = {"poisson": 14, "gamma:4": 5}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 6))
def test_taking_all_is_what_tritons_batcher_does(gaps_ms: list[int], most: int) -> None:
    """Two simulations that have nothing in common; at a tie the batcher takes what comes at that moment, so do both."""
    at_ms = np.cumsum(gaps_ms)
    ends_s = ends(All(max_rows=most), lambda rows: (7 + 2 * rows) / 1e3, at_ms / 1e3)
    requests = [Request(number=number, at=int(at) * MS) for number, at in enumerate(at_ms)]
    outcome = simulate(Rules(max_batch_size=most, preferred=frozenset([most])), _service, Arrivals(requests))
    expected = {answer.request.number: float(answer.at) / MS for answer in outcome.answers}
    # A tie of floats may fall either way; then the answers differ by an execution, so such examples say nothing.
    if not _ties(expected.values(), at_ms):
        assert ends_s * 1e3 == pytest.approx([expected[number] for number in range(len(at_ms))])


def _service(rows: int) -> int:
    return (7 + 2 * rows) * MS


def _ties(ends_ms: object, at_ms: object) -> bool:
    return bool({round(ends_m) for ends_m in ends_ms} & {int(at_m) for at_m in at_ms})  # type: ignore[attr-defined]


@given(st.lists(st.floats(0.0, 0.05), min_size=1, max_size=80))
def test_nobody_is_answered_late_under_deadlines(gaps: list[float]) -> None:
    """With a device that is as it was learned, a request is refused or in time, and nothing is refused while idle."""
    device, slo_s = SimulatedDevice(fixed_s=0.02, row_s=0.0005), 0.05
    at = np.cumsum(gaps)
    policy = settle(Deadline(max_rows=64), device.seconds, 64)
    ends_s = ends(policy, device.seconds, at, slo_s)
    answered = np.isfinite(ends_s)
    assert np.all(ends_s[answered] <= at[answered] + slo_s + 1e-9)
    assert answered[0]


def test_a_settled_aimd_is_near_the_largest_batch_that_fits() -> None:
    policy = settle(Aimd(max_rows=64, slo_s=0.03), SimulatedDevice(fixed_s=0.02, row_s=0.0005).seconds, 64)
    assert 0.9 * 20 <= policy.cap <= 21  # 20 + 0.5 b <= 30


@given(st.floats(0.001, 0.1), st.floats(1e-4, 0.01), st.floats(0.001, 0.5))
def test_the_largest_batch_fits_and_the_next_does_not(fixed: float, row: float, within: float) -> None:
    device = SimulatedDevice(fixed_s=fixed, row_s=row)
    rows = device.largest(within)
    assert not rows or device.seconds(rows) <= within + 1e-8 * row + 1e-12
    assert device.seconds(rows + 1) > within - 1e-8


@given(st.floats(50, 800), st.floats(0.5, 2.0))
def test_a_search_ends_with_the_edge_between_two_points(true_edge: float, off: float) -> None:
    points: list[RateTrial] = []
    while (rate := following(points, true_edge * off)) is not None:
        # 1 % are missed at the edge, and 20 x as much per rate above and below.
        missed = max(0.0, 0.01 + 0.2 * (rate / true_edge - 1))
        points.append(RateTrial(rate_per_s=rate, requests=100_000, late=min(100_000, round(100_000 * missed))))
    highest = edge(points)
    assert len(points) <= MOST
    assert highest == pytest.approx(true_edge, rel=CLOSE - 1)


def test_the_edge_is_on_the_line_between_points() -> None:
    points = [RateTrial(rate_per_s=rate, requests=1000, late=late) for rate, late in ((100, 0), (110, 5), (120, 25))]
    assert edge(points) == pytest.approx(112.5)
    assert edge(points[:2]) is None
    assert edge(points[2:]) is None


def test_points_against_the_order_are_pooled() -> None:
    points = [
        RateTrial(rate_per_s=rate, requests=1000, late=late)
        for rate, late in ((100, 0), (110, 14), (120, 6), (130, 30))
    ]
    # 110 and 120 become one point of 115 with 10 of 1,000 missed.
    assert edge(points) == pytest.approx(115)


@settings(deadline=None)
@given(st.floats(50, 900))
def test_a_sweep_finds_a_plain_edge(true_edge: float) -> None:
    def measure(rate: float) -> RateTrial:
        return RateTrial(
            rate_per_s=rate, requests=10_000, late=round(10_000 * max(0.0, 0.01 + 0.1 * (rate / true_edge - 1)))
        )

    assert swept(measure, 0.0, 1000.0) == pytest.approx(true_edge, rel=0.01)


@pytest.mark.parametrize("kind", ["poisson", "gamma:4"])
def test_two_rates_have_the_same_arrivals_in_another_time(kind: str) -> None:
    stream = ArrivalStream.parse(kind, seed=3, requests=500)
    slow, counts = stream.times(100)
    fast, _ = stream.times(400)
    both = min(len(slow), len(fast))
    assert slow[:both] == pytest.approx(4 * fast[:both])
    assert abs(int(counts.sum()) - stream.requests) < 5 * math.sqrt(stream.cv2 * stream.requests)
    assert int(np.argmax(counts)) == pytest.approx(WARM_UP, abs=5 * math.sqrt(stream.cv2 * WARM_UP))


@functools.cache
def _goodputs(kind: str, name: str) -> tuple[float, ...]:
    """By seed, with answers due after 25 ms."""
    way = contenders(REFERENCE, SLO_S, 256)[name]
    streams = (ArrivalStream.parse(kind, seed=seed, requests=REQUESTS) for seed in range(SEEDS[kind]))
    return tuple(goodput(way, CONFIG, REFERENCE, stream, SLO_S) for stream in streams)


def _over_greedy(kind: str, name: str) -> Interval:
    return paired(_goodputs(kind, name), _goodputs(kind, GREEDY))


@pytest.mark.parametrize(("kind", "reference"), [("poisson", 418 / 383), ("gamma:4", 215 / 168)])
def test_deadlines_beat_greedy(kind: str, reference: float) -> None:
    interval = _over_greedy(kind, DEADLINE)
    assert verdict(interval, more_is_better=True).word == FASTER
    assert interval.low < reference < interval.high + 0.03  # the reference is of one seed


@pytest.mark.parametrize(
    ("name", "word", "reference"),
    [(NONE, SLOWER, 76 / 383), (HALF, SLOWER, 362 / 383), (AIMD, SAME, 383 / 383)],
)
def test_the_order_is_that_of_the_reference(name: str, word: str, reference: float) -> None:
    interval = _over_greedy("poisson", name)
    assert verdict(interval, more_is_better=True).word == word
    assert interval.low - 0.03 < reference < interval.high + 0.03  # the reference is of one seed


def _row(**changed: object) -> GoodputRow:
    values: dict[str, object] = {"contender": HALF, "arrivals": "poisson", "seeds": 5, "measured_per_s": 100.0}
    values |= {"simulated_per_s": 110.0, "ratio": None, "simulated_ratio": None, "late_sends": 0.0, "cores_busy": 0.0}
    return GoodputRow(**(values | changed))  # type: ignore[arg-type]


def test_a_table_claims_no_more_than_its_intervals() -> None:
    touches = Interval(value=0.968, low=0.937, high=1.0004, level=0.95, count=5, method="")
    row = _row(ratio=touches, simulated_ratio=replace(touches, high=0.9996))
    shown = cells(row, {})
    assert shown[4:6] == (str(touches), str(verdict(touches, more_is_better=True)))
    assert shown[5].startswith(CANNOT_TELL)
    assert shown[-1] == SLOWER
    assert len(shown) == len(TITLES)
    assert cells(_row(), {})[4:6] == ("", "")
    assert [more_seeds(rows) for rows in ([row], [_row(simulated_ratio=touches)], [_row()], [])] == [1, 1, 0, 0]


def test_more_seeds_are_a_test_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seeds that are added to those that asked for them would be looked at twice."""
    short = ["--requests", "100", "--only", GREEDY, "--only", DEADLINE, "--arrivals", "gamma:4"]
    assert main([*short, "--first-seed", "3", "--seeds", "2", "--results", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    found = re.search(r"To be certain: --first-seed 5 --seeds (\d+)\. (.*)", printed)
    assert found is not None
    assert (int(found[1]) > 2, found[2]) == (True, anew("seeds"))
    touches = Interval(value=0.968, low=0.937, high=1.0004, level=0.95, count=5, method="")
    assert markdown([_row(ratio=touches)], {}).endswith(f"|\n\n{anew('rounds')}")
    assert markdown([_row()], {}).endswith("|")


def test_the_reference_is_not_compared_with_itself() -> None:
    searches = [_search(seed=seed, contender=name) for seed in range(3) for name in (GREEDY, AIMD)]
    greedy, aimd = lines(searches)
    assert (greedy.ratio, greedy.simulated_ratio) == (None, None)
    assert aimd.simulated_ratio is not None
    assert aimd.simulated_ratio.value == 1


def _search(**changed: object) -> GoodputSearch:
    point = MeasuredRate(
        rate_per_s=100.0,
        requests=10,
        late=1,
        refused=1,
        not_sent=0,
        late_sends=0,
        p50_ms=1.0,
        p99_ms=2.0,
        cores_busy=0.5,
        load_average=0.1,
        started_at="2026-01-01T00:00:00+00:00",
    )
    values: dict[str, object] = {
        "model": "m",
        "contender": GREEDY,
        "arrivals": "gamma:4",
        "seed": 0,
        "slo_ms": 50.0,
        "fixed_ms": 20.0,
        "row_ms": 0.5,
        "cap": 60,
        "requests": 10,
        "longest_s": 8.0,
        "simulated_per_s": 99.0,
        "points": (point, point),
        "machine": Machine.this(),
        "versions": {"python": "3"},
        "command": ("python",),
    }
    return GoodputSearch(**(values | changed))  # type: ignore[arg-type]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    for search in (_search(), _search(points=())):
        assert load(search.write(tmp_path)) == search
    assert [path.name.rpartition(".s0.")[0] for path in tmp_path.iterdir()] == ["m.greedy.gamma4"]


def test_another_question_has_another_file() -> None:
    assert _search().file_name == _search(points=(), command=("other",)).file_name
    assert _search().file_name != _search(slo_ms=51.0).file_name


def test_a_disturbed_point_does_not_count() -> None:
    quiet = _search().points[0]
    points = [
        replace(quiet, rate_per_s=rate, late=late, cores_busy=busy, requests=1000)
        for rate, late, busy in ((100.0, 0, 0.2), (110.0, 500, 0.9), (110.0, 20, 0.2))
    ]
    assert _search(points=tuple(points)).goodput_per_s == pytest.approx(105)


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(RecordError, match=r"x\.json: not a record"):
        load(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ranker"], "has no parameters fixed_ms and row_ms"),
        (["--arrivals", "uniform"], "not a kind of arrivals"),
        (["--slo-times", "0.5"], "every request is late"),
        (["--requests", "1"], "100 or more"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_what_is_no_kind_of_arrivals_is_refused() -> None:
    for text in ("poisson:2", "gamma:0", "gamma:x", ""):
        with pytest.raises(Mistake):
            ArrivalStream.parse(text, seed=0, requests=100)
