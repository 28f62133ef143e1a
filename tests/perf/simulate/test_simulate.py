"""Predictions from hand-made service times, against what a few lines of arithmetic say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from hand_made import CONFIG, SLA, predicted, ramp
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.measure.service_profile import Profile, load, write
from perf.records.candidate import Candidate
from perf.records.size_mix import SizeMix
from perf.records.traffic import Traffic
from perf.simulate import __main__ as program
from perf.simulate.costs import Costs, contention
from perf.simulate.predict import predict
from triton_batching.terminal import Mistake


@pytest.mark.slow
def test_sizes_are_simulated_in_a_drawn_order_however_many_they_are(tmp_path: Path) -> None:
    """Of a configuration that joins only requests of one size; a file of more lines is cut to some of them."""
    config = text_format.Parse(
        'name: "hand_made" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]', ModelConfig()
    )

    def rows_per_execution(mix: SizeMix) -> float:
        traffic = Traffic.parse("closed:16", mix=mix)
        profile = Profile(ramps=(ramp(),))
        return predict(Candidate(max_batch_size=8), config, traffic, profile, SLA, requests=4000).rows_per_execution

    path, rng = tmp_path / "sizes", np.random.default_rng(1)
    for count in (1000, 1001):
        path.write_text("\n".join(map(str, rng.integers(1, 500, count))))
        assert 1.0 <= rows_per_execution(SizeMix(text=f"file:{path}")) < 1.1
    # Two sizes drawn one by one run in rows of two on average; in turn they would run alone, sorted in full batches.
    for text in ("20,30", "20*100,30*100"):
        assert 1.7 < rows_per_execution(SizeMix(text=text)) < 2.3


def test_one_client_waits_for_one_execution_at_a_time() -> None:
    prediction = predicted("closed:1")
    assert prediction.throughput_rows_per_s == pytest.approx(1 / 20.5e-3)
    assert set(prediction.percentiles_ms.values()) == {20.5}
    assert (prediction.late, prediction.rows_per_execution, set(prediction.sizes)) == (0.0, 1.0, {1})
    assert prediction.busy == pytest.approx(1.0, rel=0.01)


def test_a_full_closed_loop_runs_full_batches_and_waits_for_one() -> None:
    prediction = predicted("closed:16")
    assert prediction.throughput_rows_per_s == pytest.approx(8 / 24e-3, rel=0.001)
    assert prediction.percentiles_ms[50] == pytest.approx(48.0)
    assert prediction.queue_share == pytest.approx(0.5, abs=0.01)


def test_the_way_and_the_gap_are_part_of_a_clients_cycle() -> None:
    """A request is back after 1.5 ms; the gap, exponential with mean 0.7 ms, is longer once in exp(1.5 / 0.7)."""
    prediction = predicted("closed:1", ramp(gap_us=700.0, outside_us=1500.0))
    assert prediction.throughput_rows_per_s == pytest.approx(1 / (22.0e-3 + 0.7e-3 * np.exp(-1.5 / 0.7)), rel=0.005)
    assert np.mean(list(prediction.percentiles_ms.values())) > 21.0
    full = predicted("closed:32", ramp(gap_us=700.0))
    assert full.throughput_rows_per_s == pytest.approx(8 / 24.7e-3, rel=0.005)


def test_an_instance_is_free_when_its_last_answer_has_left() -> None:
    """0.1 ms an answer: 0.8 ms after 24 ms of computing, at a pace that changes."""
    profiled = ramp(output_us=100.0, outside_us=300.0)
    assert (profiled.computed_alone_us, profiled.output.at(8)) == pytest.approx((20_500.0, 800.0))
    # What the server counts as output is part of a request's way, which is from and to the computing.
    assert profiled.way.lone_us == pytest.approx(300.0)
    full = predicted("closed:32", profiled, requests=12_000)
    assert full.throughput_rows_per_s == pytest.approx(8 / 24.8e-3, rel=0.005)
    assert full.busy == pytest.approx(1.0, abs=0.01)
    assert full.computing_ms[8] == pytest.approx(24.0, rel=1e-3)


def test_instances_without_contention_double_and_with_full_contention_do_not() -> None:
    free = predicted("closed:32", ramp(), ramp(instances=2), instances=2)
    shared = predicted("closed:32", ramp(), ramp(instances=2, factor=2.0), instances=2)
    assert free.throughput_rows_per_s == pytest.approx(2 * 8 / 24e-3, rel=0.002)
    assert shared.throughput_rows_per_s == pytest.approx(8 / 24e-3, rel=0.02)


def test_the_same_seed_gives_the_same_prediction_and_another_does_not() -> None:
    assert predicted("gamma:200:4") == predicted("gamma:200:4")
    candidate, traffic, profile = Candidate(max_batch_size=8), Traffic.parse("poisson:200"), Profile(ramps=(ramp(),))
    first, second = (predict(candidate, CONFIG, traffic, profile, SLA, requests=1000, seed=seed) for seed in (1, 2))
    assert first != second


def test_an_instance_count_that_was_not_measured_is_interpolated_and_said_to_be() -> None:
    """Contention of 1.6 with two and 2.2 with three is 1 + 0.6 (k - 1): 2.8 with four."""
    profile = Profile(ramps=(ramp(), ramp(instances=2, factor=1.6), ramp(instances=3, factor=2.2)))
    assert contention(profile, None, 4) == pytest.approx(2.8, rel=0.01)
    costs = Costs.of(Candidate(max_batch_size=8, instances=4), profile)
    assert costs.shared_us[8] == pytest.approx(2.8 * 24_000, rel=0.01)
    assert "4 instances were not profiled" in costs.notes[0]
    assert Costs.of(Candidate(max_batch_size=8, instances=2), profile).notes == ()


def test_threads_without_a_ramp_are_refused() -> None:
    profile = Profile(ramps=(replace(ramp(), threads=1), replace(ramp(), threads=2)))
    assert Costs.of(Candidate(max_batch_size=8, threads=2), profile).ramp.threads == 2
    with pytest.raises(Mistake, match="no service times with 4 threads"):
        Costs.of(Candidate(max_batch_size=8, threads=4), profile)


@pytest.mark.slow
def test_rare_requests_find_the_caches_cold() -> None:
    """6 ms more after a long pause: with 200 ms between requests nearly all, with two always in flight nothing."""
    cold = replace(ramp(), rare_us=26_500.0)
    assert cold.cold_us == pytest.approx(6_000.0)
    assert predicted("constant:5", cold).percentiles_ms[50] == pytest.approx(26.5, abs=1e-3)
    assert predicted("closed:2", cold).percentiles_ms[50] == 21.0
    # A pause that changes little is none.
    assert replace(ramp(), rare_us=20_900.0).cold_us == ramp().cold_us == 0.0


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    profiled = ramp(instances=2, factor=1.3, gap_us=50.0)
    path = write(profiled, tmp_path)
    assert path.name == f"hand_made.default.b{profiled.max_batch_size}.k2.json"
    # A ramp with another maximum is another record, and leaves this one as it is.
    wider = write(replace(profiled, max_batch_size=32, config_sha256="another"), tmp_path)
    assert wider.name == "hand_made.default.b32.k2.json"
    assert load(path) == profiled
    assert load(path).same(replace(profiled, started_at="later", sizes=()))
    assert not load(path).same(replace(profiled, model_sha256="another"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--load", "trace:/nosuch"], "/nosuch: not a trace of arrivals"),
        (["--load", "gamma:30:1e300"], "--load gamma:30:1e300: not a load."),
        (["--load", "closed:4", "--p99-ms", "nan"], "the latency must be a finite number above 0"),
        (["--load", "closed:4", "--delay-ms", "2,nan"], "--delay-ms nan: a delay is 0 to 3600000 milliseconds."),
        (["--load", "closed:4", "--delay-ms", "1e300"], "--delay-ms 1e+300: a delay is 0 to 3600000 milliseconds."),
        (["--load", "closed:4", "--seed", "-1"], "--seed -1: must be 0 or more."),
    ],
)
def test_a_wrong_value_is_one_line_before_anything_is_measured(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf.simulate.command._profile", lambda *_: pytest.fail("the model was profiled"))
    assert program.main(["ranker", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
