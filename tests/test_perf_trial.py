"""Trials of candidates on real servers, in turn, and the loads that they are measured under."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from studies import study
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.fleet.arrivals import arrivals
from clients.fleet.sla import Sla
from clients.fleet.target import Running
from clients.fleet.variant import Overrides, read
from export.terminal import Mistake
from perf import runs
from perf.candidate import Candidate
from perf.interleaved import Lane, gain, interleaved, lanes
from perf.study import AGAINST, NOISE, Trial
from perf.traffic import NS, Traffic
from perf.trial import Meter

MODEL = "simulated_accelerator"
ONE, TWO = (Candidate(max_batch_size=8, instances=instances) for instances in (1, 2))


@pytest.mark.parametrize(
    ("words", "workers", "in_flight"), [("closed:16", 2, 8), ("closed:7", 1, 7), ("closed:9", 3, 3), ("closed:1", 1, 1)]
)
def test_clients_are_spread_evenly(words: str, workers: int, in_flight: int) -> None:
    load = Traffic.parse(words, rows=3).fleet(warm_up_s=0.5, duration_s=4.0, workers=3 if words == "closed:9" else 2)
    assert (load.pattern, load.workers, load.in_flight, load.rows) == ("closed", workers, in_flight, 3)
    assert str(Traffic.parse(words)) == f"closed:{load.clients}"


@pytest.mark.parametrize("words", ["poisson:300", "constant:300", "gamma:300:4", "ramp:100:500"])
def test_simulation_and_fleet_have_the_same_arrivals_on_average(words: str) -> None:
    traffic = Traffic.parse(words)
    assert str(traffic) == words
    load = traffic.fleet(warm_up_s=1.0, duration_s=10.0, workers=2, seed=3)
    due = arrivals(load)
    due = due[(due >= 1.0) & (due < 11.0)] - 1.0
    simulated = np.array([request.at / NS for request in traffic.simulated(3000, turnaround=0, seed=3).arrivals()])
    # 3,000 requests in 10 s in both. Counts of gamma gaps vary by cv2 as much as Poisson's.
    spread = 4 * np.sqrt(3000 * traffic.cv2)
    assert abs(len(due) - 3000) <= spread
    assert abs(np.sum(simulated < 10.0) - 3000) <= spread
    for half in (due, simulated):
        first = {"ramp:100:500": 1000}.get(words, 1500)
        assert abs(np.sum(half < 5.0) - first) <= spread


def test_a_trace_is_replayed_by_the_fleet(tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text("5.0\n5.5\n6.0\n")
    load = Traffic.parse(f"trace:{trace}").fleet(warm_up_s=0.0, duration_s=2.0)
    np.testing.assert_array_equal(arrivals(load), [0.0, 0.5, 1.0])
    with pytest.raises(Mistake, match="ramp:100:400"):
        Traffic.parse("ramp:100")


def fast() -> ModelConfig:
    """The stand-in with a fifth of its times: 4 ms and 0.1 ms a row."""
    return Overrides(parameters={"fixed_ms": "4", "row_ms": "0.1"}).apply(read(MODEL, "dynamic"))


@pytest.mark.server
def test_candidates_are_measured_in_turn_on_servers_of_their_own() -> None:
    meter = Meter(sla=Sla(latency_ms=5000.0), warm_up_s=0.3, command=("python", "-m", "perf.tune", MODEL))
    seen: list[tuple[int, str]] = []

    def measure(server: Running, candidate: Candidate, stage: str, number: int) -> Trial:
        assert Candidate.of(server.config).instances == candidate.instances
        seen.append((server.server.pid if server.server else 0, stage))
        load = Traffic.parse("closed:8")
        return meter.measure(server, candidate, load, stage=stage, round=number, seconds=1.0, seed=number)

    with lanes(MODEL, fast(), [ONE, TWO], stage=AGAINST, config_name="dynamic", noise=False) as side_by_side:
        trials = list(interleaved(side_by_side, 2, measure))
    assert [(one.candidate, one.stage) for one in trials] == [(ONE, AGAINST), (TWO, AGAINST)] * 2
    assert [one.round for one in trials] == [1, 1, 2, 2]
    # Two servers, of which each has its trial in both rounds.
    assert len({pid for pid, _ in seen}) == 2
    assert seen[:2] == seen[2:]
    # The answers were asked for once: every server takes the same largest batch.
    assert len(meter.answers.pools) == 1
    for one in trials:
        assert (one.wrong, one.failed, one.not_sent, one.late, one.load) == (0, 0, 0, 0, "closed:8")
        assert one.requests == len(one.latencies_us) == len(one.due_s) > 100
        assert one.throughput_rows_per_s == pytest.approx(one.requests / one.seconds)
        assert one.passed in (True, None)
        assert max(one.counted.batches) <= 8
        assert one.cores_busy > 0
        # Every twentieth was traced, in the second trial of a server as in the first.
        parts = np.array(list(one.parts_us.values()))
        assert parts.shape[0] == len(one.stages_us) + ("late send" not in one.stages_us)
        assert one.requests / 20 * 0.5 < parts.shape[1] <= one.requests / 20 + 2
        for latency in parts.sum(axis=0):
            assert np.min(np.abs(np.array(one.latencies_us) - latency)) < 0.11
    better = gain(trials[1::2], trials[0::2], lambda one: one.throughput_rows_per_s)
    assert (better.count, better.low < better.value < better.high) == (2, True)


def trial(candidate: Candidate, stage: str, number: int, speed: float) -> Trial:
    """A trial of a study that was never made, at another speed."""
    made = study().trials[0]
    return Trial(
        **vars(made) | {"candidate": candidate, "stage": stage, "round": number, "throughput_rows_per_s": speed}
    )


def test_a_server_that_does_not_fit_beside_another_is_started_for_each_trial() -> None:
    events: list[str] = []

    def opened(name: str) -> contextlib.AbstractContextManager[Running]:
        @contextlib.contextmanager
        def server() -> Iterator[Running]:
            events.append(f"start {name}")
            yield Running(url="", request_url="", config=ModelConfig())
            events.append(f"stop {name}")

        return server()

    both = [
        Lane(candidate=one, stage=AGAINST, opened=lambda name=name: opened(name))  # type: ignore[misc]
        for one, name in ((ONE, "A"), (TWO, "B"))
    ]
    made = interleaved(both, 2, lambda server, candidate, stage, number: trial(candidate, stage, number, 1.0))
    assert [(one.candidate, one.round) for one in made] == [(ONE, 1), (TWO, 1), (ONE, 2), (TWO, 2)]
    assert events == ["start A", "stop A", "start B", "stop B"] * 2


def test_the_first_runs_once_more_as_the_noise_floor() -> None:
    with lanes(MODEL, fast(), [ONE, TWO], stage=AGAINST, together=False) as wanted:
        assert [(one.candidate, one.stage) for one in wanted] == [(ONE, AGAINST), (TWO, AGAINST), (ONE, NOISE)]
    with lanes(MODEL, fast(), [ONE, TWO], stage=AGAINST, together=False, noise=False) as wanted:
        assert len(wanted) == 2


def test_gains_are_of_rounds_that_both_have() -> None:
    old = [trial(ONE, AGAINST, number, 100.0 * number) for number in (1, 2, 3, 4, 5, 6)]
    new = [trial(TWO, AGAINST, number, 120.0 * number) for number in (6, 2, 3, 4, 5)]
    found = gain(new, old, lambda one: one.throughput_rows_per_s)
    assert found.count == 5
    assert (found.value, found.low, found.high) == pytest.approx((1.2, 1.2, 1.2))
    with pytest.raises(ValueError, match="no round has a trial of both"):
        gain(new[:1], old[:1], lambda one: one.requests)


def test_a_study_is_its_default_against_its_choice(tmp_path: Path) -> None:
    path = study().write(tmp_path / "study.json")
    default, chosen = runs.of_study(path)
    assert (len(default.runs), len(chosen.runs), len(default.noise)) == (4, 4, 4)
    assert default.runs[0].config == str(study().default)
    assert chosen.runs[0].latencies_us == next(
        one.latencies_us for one in study().trials if (one.stage, one.candidate) == (AGAINST, study().chosen)
    )
