"""Interleaved trials of candidates on real servers, and the loads of these trials."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY
from perf.compare.versus_run import VersusPlan, versus
from perf.load.arrivals import arrivals
from perf.load.variant import Overrides, read
from perf.measure.interleaved import in_order
from perf.measure.trial import Meter, serving
from perf.records import round_record
from perf.records.candidate import Candidate
from perf.records.study import AGAINST, NOISE
from perf.records.traffic import Traffic
from perf.simulate.clients import NS
from perf.simulate.clients import arrivals as simulated_arrivals
from perf.stats.latency_target import LatencyTarget
from triton_batching import processes
from triton_batching.machine import cores
from triton_batching.terminal import terminal

MODEL = "simulated_accelerator"
PSS = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
ONE, TWO = (Candidate(max_batch_size=8, instances=instances) for instances in (1, 2))


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


def fast() -> ModelConfig:
    """The simulated model with a fifth of its times: 4 ms and 0.1 ms a row."""
    return Overrides(parameters={"fixed_ms": "4", "row_ms": "0.1"}).apply(read(MODEL, "dynamic"))


@pytest.mark.server
def test_configurations_are_measured_in_turn_on_servers_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One instance against two that have the same times, in one round."""
    plan = VersusPlan(
        model=MODEL,
        configs={"one": ONE.apply(fast()), "two": TWO.apply(fast())},
        model_sha256={"one": "1", "two": "2"},
        traffic=Traffic.parse("closed:8"),
        meter=Meter(target=LatencyTarget(latency_ms=5000.0), warm_up_s=0.3, command=("x",)),
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
    trials = [round_record.read(path)[1] for path in sorted(tmp_path.glob("*.r*.json"))]
    assert sorted((trial.candidate.instances, trial.stage) for trial in trials) == [
        (1, AGAINST),
        (1, NOISE),
        (2, AGAINST),
    ]
    # The answers were collected once: all servers have the same maximum batch size.
    assert len(plan.meter.answers.pools) == 1
    for trial in trials:
        assert trial.wrong == trial.failed == trial.not_sent == trial.late == 0
        assert trial.requests == len(trial.latencies_us) == len(trial.due_s) > 0
        # Throughput is of the answers in the window; at each of its ends 8 requests are in flight.
        assert abs(trial.throughput_rows_per_s * trial.seconds - trial.requests) <= 8
        assert max(trial.counted.batches) <= 8
        assert trial.cores_busy > 0
        # Every twentieth request was traced.
        assert len(trial.stages_us) == 8
    assert "One run of each decides nothing" in capsys.readouterr().out


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


def test_no_candidate_always_comes_first() -> None:
    """Each is first as often as the others over many rounds, and a round reverses the one before."""
    orders = [in_order("ABC", number, 0) for number in range(1, 601)]
    assert orders[1::2] == [order[::-1] for order in orders[::2]]
    # Three standard deviations of a binomial number of 600 / 3 are 35; the reversed rounds depend on the others.
    assert all(abs(sum(order[0] == name for order in orders) - 200) < 50 for name in "ABC")
    assert orders == [in_order("ABC", number, 0) for number in range(1, 601)]
    assert orders != [in_order("ABC", number, 1) for number in range(1, 601)]
