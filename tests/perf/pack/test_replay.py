"""The replay of placements, and how much headroom their replays take before a plan is shown to be in time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import bdtr

from perf.pack.algorithms import pack
from perf.pack.headroom import CONFIRMING, TRIES, plan
from perf.pack.replay import Stream, replay, serve
from perf.pack.replayed import Replayed, summed
from perf.pack.validator import violations
from perf.pack.workload import Curve, Devices, Model, Workload
from tests.perf.pack.test_pack import random_workload
from triton_batching.terminal import Mistake


def uneven(seed: int) -> Workload:
    return replace(random_workload(seed, 3), arrivals="poisson", devices=Devices(count=9, memory_bytes=1.0))


def result(**changed: Any) -> Replayed:
    values = {"device": 0, "model": "m", "replays": 1, "requests": 999, "late": 0, "late_replays": 0}
    return Replayed(**{**values, "design_effect": 1.0, "p99_ms": 1.0, **changed})


def test_the_model_with_the_fewest_executions_comes_first() -> None:
    first = Stream(arrivals=np.array([0.0, 1.0, 2.0, 3.0]), times=(0.0, 10.0, 12.0))
    second = Stream(arrivals=np.array([5.0]), times=(0.0, 20.0))
    # 0: one of the first alone until 10; the second until 30; two of the first until 42, the last until 52.
    assert [ends.tolist() for ends in serve([first, second])] == [[10.0, 42.0, 42.0, 52.0], [30.0]]
    assert [ends.tolist() for ends in serve([first, second], [0, 10])] == [[10.0, 22.0, 22.0, 32.0], [52.0]]
    # With a delay the first gathers two until 1, then two until 3; the batch of the second is one.
    gathered = serve([first, second], [0, 10], delay_ms=100)
    assert [ends.tolist() for ends in gathered] == [[13.0, 13.0, 25.0, 25.0], [45.0]]


def test_a_plan_holds_when_one_model_has_far_more_executions() -> None:
    """Without the delay the other models, in small batches, leave it nothing of the device."""
    model = Model(name="a", rate_per_s=200, target_ms=400, latency=Curve.line(30, 1, 64), memory=Curve.line(0, 0, 64))
    workload = Workload(devices=Devices(count=1, memory_bytes=1.0), models=(model, replace(model, name="b")))
    (node,) = plan(workload)[0].nodes
    random = np.random.default_rng(0)
    arrivals = [np.sort(random.uniform(0, 60_000, 12_000)) for _ in node.shares]
    times = [30.0 + rows for rows in range(node.shares[0].batch + 1)]
    streams = [Stream(arrivals=each, times=times) for each in arrivals]
    taken, gathered = (
        np.percentile(serve(streams, [10_000, 0], delay_ms=delay_ms)[0] - arrivals[0], 99)
        for delay_ms in (0.0, node.delay_ms)
    )
    assert gathered <= 400
    assert taken > 10_000


@pytest.mark.parametrize("seed", range(5))
def test_even_arrivals_are_in_time_whatever_the_history(seed: int) -> None:
    workload = replace(random_workload(2 * seed + 1, 6), arrivals="uniform")
    placement = pack(workload)
    assert any(node.takes_turns for node in placement.nodes)
    assert all(each.late == 0 for each in replay(workload, placement, numbers=range(20), requests=300))


def test_a_rare_model_is_replayed_too() -> None:
    often = Model(
        name="often", rate_per_s=5000, target_ms=100, latency=Curve.line(1, 0.1, 64), memory=Curve.line(0, 0, 64)
    )
    rare = replace(often, name="rare", rate_per_s=1e-9)
    workload = Workload(devices=Devices(count=1, memory_bytes=1.0), models=(often, rare))
    found = {each.model: each for each in replay(workload, pack(workload), numbers=range(3))}
    assert found["rare"].requests == pytest.approx(3 * 90, abs=5 * 270**0.5)
    assert found["often"].requests == pytest.approx(3 * 45_000, abs=5 * 135_000**0.5)
    assert all(each.in_time for each in found.values())


def test_late_requests_are_counted_by_replay() -> None:
    # Of 1,000 requests 10 may be late; a latency that is the target by rounding is in time.
    latencies = [np.array([1.0] * (1000 - late) + [3.0] * late) for late in (0, 10, 11, 100)]
    found = summed(2, "m", [*latencies, np.full(1000, 2.0 + 1e-12)], 2.0)
    assert (found.replays, found.requests, found.late, found.late_replays) == (5, 5000, 121, 2)
    # Rank 4,950 of 5,000; 121 are 3 ms.
    assert (found.device, found.model, found.p99_ms) == (2, "m", 3.0)
    assert found.share.value == 121 / 5000
    assert found.share.low < 121 / 5000 < found.share.high
    # All late ones are in a row, so they are worth far fewer.
    assert found.design_effect > 10


@pytest.mark.parametrize("placements", [1, TRIES])
def test_a_share_below_1_percent_needs_enough_requests(placements: int) -> None:
    error = 0.01 / placements
    least = next(n for n in range(1, 1000) if 0.99**n <= error)
    assert result(requests=least).proven(placements)
    assert not result(requests=least - 1).proven(placements)
    assert result(requests=2 * least, replays=2, design_effect=2.0).proven(placements)
    assert not result(requests=2 * least - 2, replays=2, design_effect=2.0).proven(placements)


@pytest.mark.parametrize("placements", [1, TRIES])
def test_few_replays_may_be_late(placements: int) -> None:
    error = 0.05 / placements
    most = max(n for n in range(20) if bdtr(n, CONFIRMING, 0.1) <= error)
    many = result(replays=CONFIRMING, requests=CONFIRMING * 2000, late=100)
    assert replace(many, late_replays=most).proven(placements)
    assert not replace(many, late_replays=most + 1).proven(placements)
    # One late request of 100 is 1 %, so replays with few requests of a model are not counted.
    assert replace(many, requests=CONFIRMING * 100, late=10, late_replays=10).proven(placements)


@pytest.mark.slow
def test_a_plan_holds_on_other_seeds() -> None:
    """With one replay to decide, no headroom was enough for this workload; 3 of 20 other replays were late."""
    workload = uneven(3)
    placement, found = plan(workload)
    assert placement.headroom > 0
    assert violations(workload, placement) == []
    others = replay(workload, placement, seed=1, numbers=range(20))
    assert all(each.share.high < 0.01 for each in (*found, *others))
    # At most 10 % of the replays are late: then more than 5 of 20 have a probability of 1 %.
    assert all(each.late_replays <= 5 for each in others)
    without = replay(workload, pack(workload), seed=1, numbers=range(20))
    assert max(each.late_replays for each in without) > max(each.late_replays for each in others) + 2


@pytest.mark.slow
def test_without_enough_headroom_it_says_how_many_are_late() -> None:
    # Two executions of one row just fit into the target, so any queue is late.
    latency = Curve.line(10, 0, 1)
    model = Model(name="m", rate_per_s=40, target_ms=20, latency=latency, memory=Curve.line(0, 0, 1))
    workload = Workload(devices=Devices(count=9, memory_bytes=1.0), models=(model,))
    message = (
        rf"even planned for 2 times the rates, \d+ of \d+ requests of m on device \d are late in {CONFIRMING} replays"
    )
    with pytest.raises(Mistake, match=message):
        plan(workload)
