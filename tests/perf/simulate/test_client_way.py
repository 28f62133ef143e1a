"""The way of a client's requests, and what a request costs the server beside its rows."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, SLA, level, predicted, ramp

from perf.measure.ramp import Level
from perf.measure.service_profile import Profile
from perf.records.candidate import Candidate
from perf.records.traffic import Traffic
from perf.simulate.predict import predict
from perf.studies.prediction.points import ASLEEP, open_way


def test_a_ramp_gives_the_time_outside_the_server() -> None:
    """400 us for a lone request, and 300 us more for each answer before one's own, of which two thirds lie apart."""
    way = ramp(outside_us=400.0, each_us=300.0).way
    assert way.lone_us == 400.0
    assert way.each_us == pytest.approx(200.0)
    assert way.mean_us({1: 10}) == 400.0
    assert way.mean_us({4: 10}) == pytest.approx(400 + 1.5 * 200)
    assert way.longer(100.0).mean_us({4: 10}) == pytest.approx(500 + 1.5 * 200)


def wide_level(rows: int, concurrency: int, us: float, outside_us: float) -> Level:
    """100 executions of 8 rows in requests of `rows` rows; the client's time per row is that of its throughput."""
    made = level(concurrency, {8: 100}, {8: us}, instances=1, gap_us=0.0, outside_us=outside_us)
    counted = replace(
        made.counted, requests=made.counted.rows // rows, compute_infer_ns=made.counted.compute_infer_ns // rows
    )
    return replace(made, counted=counted, rows=rows)


@pytest.mark.slow
def test_costs_per_request_and_per_row_are_told_apart() -> None:
    """A lone request of one row is 476 us outside its execution and one of 8 rows 2,033 us.

    8 rows in 4 requests take 23.6 ms and in 8 requests 24 ms: 0.1 ms a request, so 23.3 ms in one.
    """
    wide = (wide_level(8, 1, 23_300.0, 2_033.0), wide_level(2, 9, 23_600.0, 900.0))
    several = replace(ramp(outside_us=476.0), wide=wide)
    assert several.way.of(8).lone_us == pytest.approx(2_033.0)
    assert several.request_costs.computing_us == pytest.approx(100.0)
    traffic, profile = Traffic.parse("closed:1", rows=8), Profile(ramps=(several,))
    prediction = predict(Candidate(max_batch_size=8), CONFIG, traffic, profile, SLA, requests=4000)
    assert prediction.sizes.keys() == {8}
    assert prediction.percentiles_ms[50] == pytest.approx(23.3 + 2.033, rel=0.01)
    # Requests of one row have the times of the ramp.
    assert predicted("closed:1", several).percentiles_ms[50] == pytest.approx(20.5 + 0.476, rel=0.01)


@pytest.mark.slow
def test_a_longer_way_in_an_open_loop_is_the_clients_and_not_the_loops() -> None:
    """perf_analyzer takes longer there, as measured with rare requests; another client has its own way."""
    profiled = replace(ramp(outside_us=400.0), rare_way_us=900.0)
    for offered in ("closed:1", "constant:5"):
        assert predicted(offered, profiled).percentiles_ms[50] == pytest.approx(20.5 + 0.4, rel=0.01)
    for way, lone_us in ((open_way(profiled), 900), (replace(profiled.way, lone_us=250.0), 250)):
        rare = predict(
            Candidate(max_batch_size=8),
            CONFIG,
            Traffic.parse("constant:5"),
            Profile(ramps=(profiled,)),
            SLA,
            requests=4000,
            way=way,
        )
        assert rare.percentiles_ms[50] == pytest.approx(20.5 + lone_us / 1e3, rel=0.01)
    assert open_way(replace(profiled, rare_way_us=None)).open_lone_us == pytest.approx(400 * ASLEEP)
