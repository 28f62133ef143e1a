"""The doctor with a running server: models that failed in silence, other configurations, batches that do not form."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import Bench
from doctor_examples import completed
from doctor_server import HELD, Examiner, bad, examining, good
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serve.doctor.__main__ import main
from serve.doctor.live import LiveServer, examine_live
from serve.doctor.repository import Repository
from serve.doctor.rule import RULES, Example

pytestmark = pytest.mark.server
BATCHED = 'backend: "python"\nmax_batch_size: 8\ndynamic_batching { }'
SMALL = completed('backend: "python"\nmax_batch_size: 2\n')
MODELS = {
    "good": good("B216"),
    "shapes": bad("B216"),
    "edited": Example(BATCHED),
    # It is loaded as its variant.
    "varied": Example(SMALL, files={"configs/small.pbtxt": SMALL}),
    # Whichever of the two files the server has read, it has the same configuration.
    "twin": Example(BATCHED, files={"configs/small.pbtxt": completed(BATCHED)}),
    "misnamed": Example(f'{BATCHED}\nname: "another"'),
}
REQUESTS = 3 * HELD
"""All rules ask for some."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def triton(held_bench: Bench, folder: Path) -> Iterator[Examiner]:
    with examining(held_bench, folder, MODELS) as running:
        assert [name for name, refusal in running.messages.items() if refusal] == ["misnamed"]
        for model in ("good", "shapes"):
            assert (
                running.refusals([{"x": np.zeros((1, 1 + at % 2), np.float32)} for at in range(REQUESTS)], model) == []
            )
            assert running.counters(model).rows == REQUESTS
        path = folder / "edited" / "config.pbtxt"
        path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 16"))
        (folder / "varied" / "config.pbtxt").write_text(completed(BATCHED))
        yield running


def test_the_doctor_says_what_a_running_server_does_not(
    triton: Examiner, folder: Path, golden: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(folder), "--select", "V901,V902,V903", "--live", triton.server.http_url]
    assert main([*words, "--log", str(triton.server.log)]) == 1
    assert main([*words, "--config-name", "small", "--select", "V901"]) == 1
    assert main([str(folder / "edited"), *words[1:]]) == 1
    assert main([*words[:-1], "127.0.0.1:9"]) == 2
    golden("doctor_live", "".join(capsys.readouterr()), masks={r"[\d.]+ were in": "N were in"})


@pytest.fixture
def live(triton: Examiner, folder: Path) -> LiveServer:
    return LiveServer.read(triton.server.http_url, Repository(path=folder))


def found(live: LiveServer, code: str, name: str = "shapes") -> bool:
    return any(f"'{name}'" in finding.message for finding in examine_live(live, [RULES[code]]))


def configured(live: LiveServer, delay_us: int = 0, kind: int = ModelInstanceGroup.KIND_CPU) -> dict[str, ModelConfig]:
    config = ModelConfig()
    config.CopyFrom(live.configs["shapes"])
    config.dynamic_batching.max_queue_delay_microseconds = delay_us
    config.instance_group[0].kind = kind
    return {"shapes": config}


def timed(live: LiveServer, *, queue_s: float, run_s: float) -> LiveServer:
    """The server with these times of its executions, and of requests in the queue, in its statistics."""
    (statistics,) = (json.loads(json.dumps(entry)) for entry in live.statistics if entry["name"] == "shapes")
    times: dict[str, Any] = statistics["inference_stats"]
    for key, seconds in {"queue": queue_s, "compute_input": 0, "compute_infer": run_s, "compute_output": 0}.items():
        times[key]["ns"] = round(seconds * 1e9 * REQUESTS)
    (batch,) = statistics["batch_stats"]
    for key, entry in batch.items():
        if key.startswith("compute_"):
            entry["ns"] = times[key]["ns"]
    return dataclasses.replace(live, statistics=(statistics,))


def test_a_queue_stalls_if_requests_wait_for_four_executions(live: LiveServer) -> None:
    assert found(timed(live, queue_s=0.5, run_s=0.1), "V904")
    assert not found(timed(live, queue_s=0.3, run_s=0.1), "V904")


def test_cores_in_use_waits_for_the_delay_and_gpus_are_left_alone(live: LiveServer) -> None:
    assert live.cpu_s is not None
    assert live.cpu_s > 0
    assert live.cores is not None
    limit = 0.85 * live.cores * 0.3 * REQUESTS
    live = timed(live, queue_s=1, run_s=0.3)

    def named(**changes: Any) -> bool:
        return found(dataclasses.replace(live, **{"cpu_s": 0.99 * limit, **changes}), "V906")

    assert named()
    assert not named(cpu_s=1.01 * limit)
    assert not named(cpu_s=None)
    assert not named(cores=None)
    assert named(configs=configured(live))
    assert not named(configs=configured(live, delay_us=60_000_000))
    assert not named(configs=configured(live, kind=ModelInstanceGroup.KIND_GPU))
