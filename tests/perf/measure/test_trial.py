"""Interleaved trials of candidates on real servers, and the loads of these trials."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from studies import study
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.compare import __main__ as compare
from perf.compare.versus_run import VersusPlan, versus
from perf.load.arrivals import arrivals
from perf.load.deployment import Running
from perf.load.variant import Overrides, read
from perf.measure.interleaved import Lane, in_order, interleaved, lanes
from perf.measure.trial import Meter, serving
from perf.records import file, round_record, runs
from perf.records.candidate import Candidate
from perf.records.round_record import KeyedTrial
from perf.records.study import AGAINST, NOISE, Trial
from perf.records.traffic import Traffic
from perf.simulate.clients import NS
from perf.simulate.clients import arrivals as simulated_arrivals
from perf.stats.latency_target import LatencyTarget
from serve.management import gpu_use
from serve.management.metrics import Device
from triton_batching import processes
from triton_batching.machine import cores
from triton_batching.terminal import Mistake, terminal

MODEL = "simulated_accelerator"
PSS = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
GPU = Device(busy=0.5, memory_bytes=9000 * 2**20, memory_total_bytes=0.0)
ONE, TWO = (Candidate(max_batch_size=8, instances=instances) for instances in (1, 2))


@pytest.mark.parametrize(
    ("words", "workers", "in_flight"), [("closed:16", 2, 8), ("closed:7", 1, 7), ("closed:9", 3, 3), ("closed:1", 1, 1)]
)
def test_clients_are_spread_evenly(words: str, workers: int, in_flight: int) -> None:
    load = Traffic.parse(words, rows=3).load(warm_up_s=0.5, duration_s=4.0, workers=3 if words == "closed:9" else 2)
    assert (load.pattern, load.workers, load.in_flight, load.rows) == ("closed", workers, in_flight, 3)
    assert str(Traffic.parse(words)) == f"closed:{load.clients}"


@pytest.mark.parametrize("words", ["poisson:300", "constant:300", "gamma:300:4", "ramp:100:500"])
def test_simulation_and_load_generator_have_the_same_arrivals_on_average(words: str) -> None:
    traffic = Traffic.parse(words)
    assert str(traffic) == words
    load = traffic.load(warm_up_s=1.0, duration_s=10.0, workers=2, seed=3)
    due = arrivals(load)
    due = due[(due >= 1.0) & (due < 11.0)] - 1.0
    simulated = np.array([request.at / NS for request in simulated_arrivals(traffic, 3000, 3)])
    # 3,000 requests in 10 s in both. Counts of gamma gaps vary by cv2 as much as Poisson's.
    spread = 4 * np.sqrt(3000 * traffic.cv2)
    assert abs(len(due) - 3000) <= spread
    assert abs(np.sum(simulated < 10.0) - 3000) <= spread
    for half in (due, simulated):
        first = {"ramp:100:500": 1000}.get(words, 1500)
        assert abs(np.sum(half < 5.0) - first) <= spread


def test_a_trace_is_replayed_by_the_load_generator(tmp_path: Path) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text("5.0\n5.5\n6.0\n")
    load = Traffic.parse(f"trace:{trace}").load(warm_up_s=0.0, duration_s=2.0)
    np.testing.assert_array_equal(arrivals(load), [0.0, 0.5, 1.0])
    # The content makes it the same load, not the path.
    assert load.trace_sha256 == hashlib.sha256(b"5.0\n5.5\n6.0\n").hexdigest()
    trace.write_text("5.0\n5.1\n6.0\n")
    changed = Traffic.parse(f"trace:{trace}")
    assert changed.sha256 != load.trace_sha256
    assert changed.load(warm_up_s=0.0, duration_s=2.0).title != load.title
    assert Traffic.parse("closed:8").sha256 == ""
    trace.unlink()
    with pytest.raises(Mistake, match=r"arrivals\.txt: not a trace of arrivals \(No such file"):
        changed.load(warm_up_s=0.0, duration_s=2.0)
    with pytest.raises(Mistake, match="ramp:100:400"):
        Traffic.parse("ramp:100")
    for words in ("gamma:300:nan", "poisson:inf", "constant:nan"):
        with pytest.raises(Mistake, match="not a load"):
            Traffic.parse(words)


def fast() -> ModelConfig:
    """The simulated model with a fifth of its times: 4 ms and 0.1 ms a row."""
    return Overrides(parameters={"fixed_ms": "4", "row_ms": "0.1"}).apply(read(MODEL, "dynamic"))


@pytest.mark.server
def test_configurations_are_measured_in_turn_on_servers_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One instance against two that have the same times, in one round."""
    monkeypatch.setattr(gpu_use, "driver", lambda: GPU)
    plan = VersusPlan(
        model=MODEL,
        configs={"one": ONE.apply(fast()), "two": TWO.apply(fast())},
        model_sha256={"one": "1", "two": "2"},
        traffic=Traffic.parse("closed:8"),
        meter=Meter(
            target=LatencyTarget(latency_ms=5000.0),
            warm_up_s=0.3,
            command=("python", "-m", "perf.compare.versus", MODEL),
        ),
        seconds=0.5,
        rounds=1,
        repository=REPOSITORY,
        folder=tmp_path,
    )
    assert replace(plan, rounds=2).missing == [1, 2]
    assert versus(plan, terminal()) in (0, 1)
    assert replace(plan, rounds=2).missing == [2]
    assert replace(plan, model_sha256={"one": "1", "two": "another"}).missing == [1]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    # Existing records are not measured again.
    assert versus(plan, terminal()) in (0, 1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    files = sorted(tmp_path.glob("*.r*.json"))
    records = [round_record.read(path) for path in files]
    trials = [trial for _, trial in records]
    # The order is drawn, and its seed is on record.
    assert sorted((trial.candidate.instances, trial.stage) for trial in trials) == [
        (1, AGAINST),
        (1, NOISE),
        (2, AGAINST),
    ]
    assert {file.read(path, KeyedTrial).order_seed for path in files} == {plan.seed}
    # The answers were collected once: all servers have the same maximum batch size.
    assert len(plan.meter.answers.pools) == 1
    for trial in trials:
        # Three servers run, so the memory in use is not that of one.
        assert trial.used.gpu_memory_mib is None
        assert trial.load == "closed:8"
        assert trial.wrong == trial.failed == trial.not_sent == trial.late == 0
        assert trial.requests == len(trial.latencies_us) == len(trial.due_s) > 0
        # Throughput is of the answers in the window; at each of its ends 8 requests are in flight.
        assert abs(trial.throughput_rows_per_s * trial.seconds - trial.requests) <= 8
        assert (trial.planned_s, trial.warm_up_s, trial.load_sha256) == (0.5, 0.3, "")
        assert trial.passed in (True, None)
        assert max(trial.counted.batches) <= 8
        assert trial.cores_busy > 0
        # Every twentieth request was traced.
        assert len(trial.stages_us) == 8
    printed = capsys.readouterr().out
    assert printed.count("p99 <= 5000 ms, noise: ") == 2
    assert "One run of each decides nothing" in printed
    assert printed.count("To be certain, measure all rounds anew: --most-rounds 3 and another folder") == 2
    # The records compare as they did.
    sides = [f"{tmp_path}:{name}" for name in ("one", "two", "noise")]
    assert compare.main([*sides[:2], "--noise", sides[2], "--out", str(tmp_path / "out" / "c.json")]) in (0, 1)
    assert "throughput" in capsys.readouterr().out


@pytest.mark.server
def test_a_server_is_measured_several_times() -> None:
    meter = Meter(target=LatencyTarget(latency_ms=5000.0), warm_up_s=0.3)
    with serving(MODEL, ONE.apply(fast())) as server:
        trials = [
            meter.measure(server, ONE, Traffic.parse(load), stage=AGAINST, seconds=0.5)
            for load in ("closed:2", "constant:100", "constant:100")
        ]
    assert all("run" in trial.stages_us for trial in trials)
    assert [trial.requests for trial in trials[1:]] == [50, 50]
    # Both open loops use the same pool; the closed loop has its own.
    assert sorted(len(pool.requests) for pool in meter.answers.pools.values()) == [16, 64]
    assert (trials[1].requests, trials[1].offered_per_s) == (50, 100.0)


@pytest.mark.server
def test_a_trial_has_what_the_processes_of_the_server_used() -> None:
    """The memory is as the kernel says it of each process; the cores are the server's, not the clients'."""
    meter = Meter(target=LatencyTarget(latency_ms=5000.0), warm_up_s=0.3)
    with serving(MODEL, TWO.apply(fast())) as server:
        assert server.server is not None
        trial = meter.measure(server, TWO, Traffic.parse("closed:8"), stage=AGAINST, seconds=0.5)
        running = processes.tree(server.server.pid)
        stubs = [pid for pid in running if "python_backend_stub" in processes.name(pid)]
        kib = [int(PSS.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())[0]) for pid in running]
    assert len(stubs) == 2
    # The server is idle since, and of what it frees little returns to the kernel.
    assert trial.used.server_memory_mib == pytest.approx(sum(kib) / 1024, rel=0.1)
    assert trial.used.server_cores is not None
    assert trial.cores_ours is not None
    assert 0 < trial.used.server_cores < trial.cores_ours * cores()
    if gpu_use.driver() is None:
        assert (trial.used.gpu_busy, trial.used.gpu_memory_mib) == (None, None)


@pytest.mark.server
def test_gpu_memory_is_read_at_the_end_if_every_reading_before_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Device | None:
        return GPU if threading.current_thread() is threading.main_thread() else None

    monkeypatch.setattr(gpu_use, "exported", lambda metrics_url: None)
    monkeypatch.setattr(gpu_use, "driver", failing)
    meter = Meter(target=LatencyTarget(latency_ms=5000.0), warm_up_s=0.3)
    with serving(MODEL, ONE.apply(fast())) as server:
        used = [
            meter.measure(server, ONE, Traffic.parse("closed:8"), stage=AGAINST, seconds=0.5, alone=alone).used
            for alone in (True, False)
        ]
    assert [each.gpu_memory_mib for each in used] == [9000, None]
    assert used[1].server_memory_mib is not None


def synthetic(candidate: Candidate, stage: str, number: int, speed: float) -> Trial:
    """A trial at another speed."""
    return replace(study().trials[0], candidate=candidate, stage=stage, round=number, throughput_rows_per_s=speed)


def test_servers_that_do_not_fit_together_are_started_for_each_trial() -> None:
    events: list[str] = []

    def opened(name: str) -> contextlib.AbstractContextManager[Running]:
        @contextlib.contextmanager
        def server() -> Iterator[Running]:
            events.append(f"start {name}")
            yield Running(url="", request_url="", config=ModelConfig())
            events.append(f"stop {name}")

        return server()

    side_by_side = [
        Lane(name=name, candidate=candidate, stage=AGAINST, opened=partial(opened, name))
        for candidate, name in ((ONE, "A"), (TWO, "B"))
    ]
    trials = interleaved(
        side_by_side, (1, 2), lambda server, lane, number: synthetic(lane.candidate, lane.stage, number, 1.0), seed=3
    )
    assert [(trial.candidate, trial.round) for trial in trials] == [(TWO, 1), (ONE, 1), (ONE, 2), (TWO, 2)]
    assert events == [f"{what} {name}" for name in "BAAB" for what in ("start", "stop")]


def test_no_candidate_always_comes_first() -> None:
    """Each is first as often as the others over many rounds, and a round reverses the one before."""
    orders = [in_order("ABC", number, 0) for number in range(1, 601)]
    assert orders[1::2] == [order[::-1] for order in orders[::2]]
    # Three standard deviations of a binomial number of 600 / 3 are 35; the reversed rounds depend on the others.
    assert all(abs(sum(order[0] == name for order in orders) - 200) < 50 for name in "ABC")
    assert orders == [in_order("ABC", number, 0) for number in range(1, 601)]
    assert orders != [in_order("ABC", number, 1) for number in range(1, 601)]


def test_a_steady_drift_favours_no_candidate() -> None:
    """The machine gains 1 % with each trial; A, then B in every round would make B 1 % faster."""
    at, rates = 0, {"A": 1.0, "B": 1.0}
    for number in range(1, 5):
        for name in in_order("AB", number, 5):
            rates[name] *= 1.01**at
            at += 1
    assert rates["A"] == pytest.approx(rates["B"])


def test_the_first_configuration_has_a_second_lane_for_the_noise() -> None:
    configs = {name: candidate.apply(fast()) for name, candidate in (("one", ONE), ("two", TWO))}
    with lanes(MODEL, configs, stage=AGAINST, together=False) as opened:
        assert [(lane.name, lane.stage) for lane in opened] == [("one", AGAINST), ("two", AGAINST), ("one", NOISE)]


def test_a_study_is_its_default_against_its_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study().write(tmp_path / "study.json")
    (default, chosen), _, _ = runs.of_study(path)
    assert (len(default.runs), len(chosen.runs)) == (4, 4)
    assert default.runs[0].config == str(study().default)
    assert chosen.runs[0].throughput_rows_per_s == next(
        trial.throughput_rows_per_s
        for trial in study().trials
        if (trial.stage, trial.candidate) == (AGAINST, study().chosen)
    )
    # In an open loop both answer all requests. Four rounds are judged at the level of the look after six.
    assert compare.main([str(path), "--out", str(tmp_path / "compared.json")]) == 0
    assert "4 runs of each" in capsys.readouterr().out
    lines = {line["quantity"]: line for line in json.loads((tmp_path / "compared.json").read_text())["lines"]}
    assert lines["throughput"]["noise"]["count"] == 4
    assert lines["p99"]["ratio"]["value"] < 1
    assert lines["p99"]["verdict"] == "faster"
