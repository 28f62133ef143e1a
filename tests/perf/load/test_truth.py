"""The load generator on real servers: a stall, a target that ends the run early, many clients in one process."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import python_model

from perf.load import __main__ as program
from perf.load import run
from perf.load.deployment import Deployment, Running, running
from perf.load.target_check import TargetCheck
from perf.load.variant import Overrides
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from perf.stats.latency_target import LatencyTarget

STALL_S = 0.5
# Answers at once, but sleeps for half a second in the execution after a file has appeared, and takes the file away.
STALLS = """import os, time
        if os.path.exists({trigger!r}):
            os.remove({trigger!r})
            time.sleep({stall})
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", a)]) for a in arrays]
"""


@pytest.fixture(scope="module")
def staller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Running, Path]]:
    """A server with a model that stalls once after each touch of the trigger, the last of these three."""
    repository = tmp_path_factory.mktemp("staller")
    trigger = repository / "trigger"
    python_model(repository, "staller", STALLS.format(trigger=str(trigger), stall=STALL_S))
    target = Deployment(model="staller", repository=repository, trace_rate=0)
    with running(target, lambda _: None) as server:
        yield target, server, trigger


def stalled(staller: tuple[Deployment, Running, Path], load: Load) -> LoadResult:
    """Measure a model that stalls once, a third into the window."""
    target, server, trigger = staller
    fired: list[float] = []

    def progress(text: str, share: float) -> None:
        if text.startswith("measuring") and share > 0.3 and not fired:
            fired.append(share)
            trigger.touch()

    result = run.run(target, load, server, run.prepare(target, load, server, lambda text, share: None), progress)
    assert len(fired) == 1
    assert not trigger.exists()
    return result


@pytest.mark.server
def test_a_stall_is_in_the_latency_of_every_request_that_was_due_in_it(
    staller: tuple[Deployment, Running, Path],
) -> None:
    """At 100 a second 50 are due while the model sleeps for 0.5 s, the k-th of them with 0.5 s - k / 100 to wait.

    That much at least, however busy the machine is. Of 200 requests the third longest is the 99th percentile.
    """
    load = Load(workers=2, pattern="constant", rate_per_s=100.0, warm_up_s=0.5, duration_s=2.0)
    result = stalled(staller, load)
    assert (result.outcome.answered, result.outcome.wrong, result.outcome.not_sent) == (200, 0, 0)
    longest = np.sort(result.sample.latencies_us)[::-1][:50] / 1e6
    at_least = STALL_S - np.arange(1, 51) / 100
    assert np.all(longest >= at_least - 0.001)
    assert result.outcome.percentiles_us[99] / 1e6 >= STALL_S - 4 / 100
    assert result.outcome.percentiles_us[90] / 1e6 >= STALL_S - 21 / 100


@pytest.mark.server
def test_a_client_that_waits_for_its_answers_hides_the_stall(staller: tuple[Deployment, Running, Path]) -> None:
    """The same stall, of which only one request in hundreds takes notice."""
    result = stalled(staller, Load(workers=1, warm_up_s=0.5, duration_s=2.0))
    latencies = np.asarray(result.sample.latencies_us)
    # An open loop of 100 requests a second has 50 late ones in the same stall.
    assert np.sum(latencies >= STALL_S * 1e6) == 1
    assert np.sum(latencies >= STALL_S * 1e6 / 2) <= 3


@pytest.mark.server
def test_many_clients_in_one_process_are_a_closed_loop(tmp_path: Path) -> None:
    """Eight clients of two processes: every request once, and never more than eight rows together."""
    arguments = [
        "--workers",
        "2",
        "--in-flight",
        "4",
        "--max-batch-size",
        "32",
        "--instances",
        "1",
        "--delay-ms",
        "500",
    ]
    common = ["--time-scale", "0.2", "--transport", "grpc", "--trace-rate", "0", "--results", str(tmp_path)]
    assert program.main(["simulated_accelerator", *arguments, "--requests", "160", *common]) == 0
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert (record["outcome"]["right"], record["outcome"]["wrong"], record["outcome"]["failed"]) == (160, 0, 0)
    batches = {int(rows): count for rows, count in record["counted"]["batches"].items()}
    assert sum(rows * count for rows, count in batches.items()) == 160
    # A batch of up to 32 rows waits 100 ms for more, but no more than eight requests are in flight.
    assert max(batches) == 8
    assert len(record["sample"]["latencies_us"]) == len(record["sample"]["due_s"]) == 160
    assert record["judgement"] is None
    # One line for each list, however many requests.
    assert len(path.read_text().splitlines()) < 400


@pytest.mark.server
def test_a_run_ends_as_soon_as_it_has_certainly_failed_and_a_pass_takes_its_whole_time() -> None:
    """One request takes 4 ms and more: all are later than 1 ms, and hardly any is as late as 3 s."""
    target = Deployment(
        model="simulated_accelerator", overrides=Overrides(max_batch_size=32, time_scale=0.2), trace_rate=0
    )
    load = Load(workers=2, pattern="poisson", rate_per_s=100.0, warm_up_s=0.5, duration_s=20.0)
    asked = (
        (load, LatencyTarget(latency_ms=1.0, percent=90.0)),
        (replace(load, duration_s=4.0), LatencyTarget(latency_ms=3_000.0, percent=50.0)),
    )
    with running(target, lambda _: None) as server:
        pool = run.prepare(target, load, server, lambda text, share: None)
        results = [
            run.run(target, each, server, pool, lambda text, share: None, TargetCheck(target=latency))
            for each, latency in asked
        ]
    missed, met = (result.judgement for result in results)
    assert missed is not None
    assert met is not None
    assert (missed.passed, missed.early, missed.late) == (False, True, missed.requests)
    # On a busy machine all latencies drift together, and the requests may be worth too few for a pass.
    assert (met.passed is not False, met.early, met.late) == (True, False, 0)
    # No run ends before a hundred requests, or before its verdict is certain.
    assert min(missed.requests, met.requests) >= 100
    assert [result.outcome.window_s < 20 for result in results] == [True, True]
    assert results[1].outcome.window_s == 4
    for result in results:
        assert len(result.sample.due_s) == result.outcome.answered + result.outcome.failed + result.outcome.not_sent
        assert max(result.sample.due_s) < result.outcome.window_s
        assert result.faults == []


@pytest.mark.server
def test_an_overloaded_server_is_as_fast_as_the_answers_that_it_counts() -> None:
    """One instance that answers a row each 20.5 ms, at most 49 a second, of which 90 a second are due."""
    alone = Overrides(max_batch_size=1, instances=1, parameters={"queue_limit_ms": "60000"})
    target = Deployment(model="simulated_accelerator", overrides=alone, trace_rate=0)
    load = Load(
        workers=2, pattern="constant", rate_per_s=90.0, in_flight_limit=1024, warm_up_s=0.5, duration_s=3.0, seed=1
    )
    with running(target, lambda _: None) as server:
        result = run.run(target, load, server, run.prepare(target, load, server, lambda text, share: None), quiet)
    # All that were due in the window get their answer, most of them after it.
    assert (result.outcome.answered, result.outcome.failed, result.outcome.not_sent) == (270, 0, 0)
    assert result.outcome.offered_per_s == 90
    assert result.outcome.rows_per_s <= 49
    # The server counts a request shortly after its answer, and the window's counters are read shortly after its end.
    assert result.outcome.rows_per_s * 3 == pytest.approx(result.counted.rows, abs=0.1 * result.counted.rows + 3)


def quiet(text: str, share: float) -> None:
    """No progress."""
