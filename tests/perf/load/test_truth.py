"""The load generator on servers that run: a stall, swapped answers, and a target that ends the run early."""

from pathlib import Path

import numpy as np
import pytest
from bench import Bench
from tiny_models import python_model

from perf.load import run
from perf.load.deployment import Deployment, running
from perf.load.target_check import TargetCheck
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from perf.stats.latency_target import LatencyTarget
from serve.launcher import Server

pytestmark = pytest.mark.server
STALL_S = 0.5
ANSWER = """import os, time
        if os.path.exists({trigger!r}):
            os.remove({trigger!r})
            time.sleep({stall})
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", a)]) for a in {order}]
"""


def model(folder: Path, name: str, order: str) -> Path:
    """A model that returns its inputs; it sleeps once after the file that is returned was touched, and removes it."""
    trigger = folder / "trigger"
    made = python_model(folder, name, ANSWER.format(trigger=str(trigger), stall=STALL_S, order=order))
    with (made / "config.pbtxt").open("a") as config:
        config.write("dynamic_batching { max_queue_delay_microseconds: 20000 }\ninstance_group [ { count: 1 } ]\n")
    return trigger


def measured(
    server: Server, name: str, load: Load, check: TargetCheck | None = None, trigger: Path | None = None
) -> LoadResult:
    """Measure; touch the trigger a third into the window."""
    target, fired = Deployment(model=name, url=server.grpc_url), False

    def progress(text: str, share: float) -> None:
        nonlocal fired
        if trigger and text.startswith("measuring") and share > 0.3 and not fired:
            fired = True
            trigger.touch()

    with running(target, lambda _: None) as found:
        return run.run(target, load, found, run.prepare(target, load, found, lambda text, share: None), progress, check)


def test_a_stall_is_in_the_latency_of_every_request_that_was_due_in_it(bench: Bench, tmp_path: Path) -> None:
    """At 100 a second 50 are due while the model sleeps for 0.5 s, the k-th of them with 0.5 s - k / 100 to wait.

    That much at least, however busy the machine is. Of 200 requests the third longest is the 99th percentile.
    """
    trigger = model(tmp_path, "staller", "arrays")
    load = Load(workers=2, pattern="constant", rate_per_s=100.0, warm_up_s=0.5, duration_s=2.0)
    with bench.serving(("staller",), tmp_path) as server:
        result = measured(server, "staller", load, trigger=trigger)
    assert not trigger.exists()
    assert (result.outcome.answered, result.outcome.wrong, result.outcome.not_sent) == (200, 0, 0)
    longest = np.sort(result.sample.latencies_us)[::-1][:50] / 1e6
    assert np.all(longest >= STALL_S - np.arange(1, 51) / 100 - 0.001)
    assert result.outcome.percentiles_us[99] / 1e6 >= STALL_S - 4 / 100


def test_a_reply_of_another_request_is_wrong(bench: Bench, tmp_path: Path) -> None:
    """A model that swaps the answers of requests that run together."""
    model(tmp_path, "swapped", "arrays[1:] + arrays[:1]")
    with bench.serving(("swapped",), tmp_path) as server:
        result = measured(server, "swapped", Load(workers=4, requests=200))
    together = sum(rows * count for rows, count in result.counted.batches.items() if rows > 1)
    assert together > 0
    assert (result.outcome.wrong, result.outcome.right) == (together, 200 - together)
    assert any("not those of their request" in fault for fault in result.faults)


def test_a_run_ends_as_soon_as_it_has_certainly_failed(bench: Bench) -> None:
    """One request takes 20 ms and more, so all are later than 1 ms."""
    load = Load(workers=2, pattern="poisson", rate_per_s=100.0, warm_up_s=0.5, duration_s=60.0)
    check = TargetCheck(target=LatencyTarget(latency_ms=1.0, percent=90.0))
    with bench.serving(("simulated_accelerator",)) as server:
        result = measured(server, "simulated_accelerator", load, check)
    missed = result.judgement
    assert missed is not None
    assert (missed.passed, missed.early, missed.late) == (False, True, missed.requests)
    assert result.outcome.window_s < 60
    # No run ends before a hundred requests, or before its verdict is certain.
    assert missed.requests >= 100
