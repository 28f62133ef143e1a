"""The way of a blind client from loads whose truth is known, and intervals that its other rounds widen."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hand_made import CONFIG, MACHINE, counters, ramp

from perf.measure.ramp import Level
from perf.measure.service_profile import Profile
from perf.measure.service_way import Way
from perf.records.candidate import Candidate
from perf.records.measurement import AnalyzerResult
from perf.records.traffic import Traffic
from perf.simulate.predict import simulated_run
from perf.simulate.uncertainty import MISFIT
from perf.studies.prediction.blind_client import BlindClient
from perf.studies.prediction.blind_predictor import BlindPredictor, ClientRound

PROFILE = Profile(ramps=(ramp(outside_us=600.0),))
TRUE = Way(lone_us=600.0, each_us=200.0, turnaround_us=0.0, open_lone_us=3_000.0, apart_us=150.0)


def measured(load: str, *, rows: int = 1, stretch: float = 1.0, stall_us: float = 0.0, requests: int = 4000) -> Level:
    """What a client of the way `TRUE` measures of a load, with a stall that is in its mean and in no median."""
    traffic = Traffic.parse(load, rows=rows)
    run = simulated_run(
        Candidate(max_batch_size=8), CONFIG, traffic, PROFILE, requests=requests, seed=7, way=TRUE, stretch=stretch
    )
    means = {size: run.computing_us[size] / count for size, count in run.sizes.items()}
    counted = counters(run.sizes, means, queue_us=float(np.mean(run.queues_us)))
    result = AnalyzerResult(
        window_ms=1000,
        windows=(),
        throughput_rows_per_s=run.throughput_per_s * rows,
        requests=counted.requests,
        mean_us=run.mean_us + stall_us,
        p50_us=float(np.median(run.latencies_us)),
        p95_us=float(np.percentile(run.latencies_us, 95)),
    )
    clients = traffic.clients or 1
    return Level(concurrency=clients, seconds=run.seconds, measured=result, counted=counted, rows=rows)


def client(*, stretch: float = 1.0, stall_us: float = 0.0, requests: int = 4000) -> BlindClient:
    """All loads of a client; in `gathered` seven requests follow the first of a batch, one behind the other."""
    gathered = measured("closed:8", requests=requests)
    counted = replace(gathered.counted, queue_ns=round(gathered.counted.requests * 7 / 2 * 150.0 * 1e3))
    levels = [replace(measured(f"closed:{n}", stretch=stretch, requests=requests), concurrency=n) for n in (1, 8, 24)]
    levels[0] = replace(levels[0], counted=replace(levels[0].counted, queue_ns=0))
    poisson = measured("poisson:150", stretch=stretch, stall_us=stall_us, requests=requests)
    return BlindClient(
        model="hand_made",
        levels=tuple(levels),
        wide=(),
        poisson=poisson,
        gathered=replace(gathered, counted=counted),
        doubled=levels[-1],
        doubled_poisson=poisson,
        machine=MACHINE,
        versions={},
        command=(),
        started_at="",
    )


@cache
def short_round(stretch: float) -> ClientRound:
    """A round of loads of 1,000 requests: intervals of each load are of repetitions as long as it."""
    return ClientRound.of(CONFIG, PROFILE, client(stretch=stretch, requests=1000))


def rounds(stretches: Sequence[float]) -> BlindPredictor:
    """A predictor from rounds in which executions took so many times the ramp's time."""
    # Each is a round of its own, also where two are equal.
    return BlindPredictor(config=CONFIG, rounds=[replace(short_round(stretch)) for stretch in stretches])


@pytest.mark.parametrize("stall_us", [0.0, 20_000.0])
def test_the_way_is_found_although_its_answers_wait_for_each_other(stall_us: float) -> None:
    """The true way within 15 %, and a second in which nothing moved, which adds 20 ms to the mean, changes nothing."""
    made = ClientRound.of(CONFIG, PROFILE, client(stall_us=stall_us))
    assert made.ways[1].open_lone_us == pytest.approx(3_000.0, rel=0.15)
    assert made.ways[1].lone_us == pytest.approx(600.0, rel=0.15)
    assert made.ways[1].apart_us == pytest.approx(150.0)
    assert made.longer == pytest.approx(1.0, abs=0.02)


def test_loads_of_other_rounds_widen_an_interval() -> None:
    """Rounds at 0.75, 1 and 1.33 times the time: the ramps are alike, and only the client's loads say so."""
    plain, load = Candidate(max_batch_size=8), [Traffic.parse("closed:8")]
    steady, moving = rounds([1.0, 1.0, 1.0]), rounds([0.75, 1.0, 1.33])
    assert steady.drift == 0.0
    assert moving.drift == pytest.approx(np.std(np.log([0.75, 1.0, 1.33]), ddof=1), rel=0.01)
    narrow, wide = (
        each.bounds(plain, load, 5.0, each.predicted(plain, load, 5.0)).throughput_rows_per_s
        for each in (steady, moving)
    )
    assert narrow.high / narrow.low < 1.25**MISFIT
    for stretch in (0.75, 1.33):
        value = measured("closed:8", stretch=stretch).measured.throughput_rows_per_s
        assert wide.hold(value)
        assert not narrow.hold(value)


def test_a_single_round_is_judged_by_its_own_loads() -> None:
    """Its loads have three times the p95 that the simulation gives them, and p50 as simulated: only that is widened."""
    plain = client(requests=1000)
    slow = [
        replace(level, measured=replace(level.measured, p95_us=3 * (level.measured.p95_us or 0.0)))
        for level in (*plain.levels, plain.poisson, plain.doubled, plain.doubled_poisson)
    ]
    *levels, poisson, doubled, doubled_poisson = slow
    late = replace(plain, levels=tuple(levels), poisson=poisson, doubled=doubled, doubled_poisson=doubled_poisson)
    widening = BlindPredictor(config=CONFIG, rounds=[ClientRound.of(CONFIG, PROFILE, late)]).widening
    for kind in (False, True):
        assert widening[kind].percentiles[95] > 5
        assert widening[kind].percentiles[50] < 2
