"""A real tritonserver shows what the rules say about sequences, caches and rate limits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from doctor_server import AS_WRITTEN, HEAD, Examiner, bad, examiner, good, settled, telling, value

from serve.doctor.example import write
from serve.doctor.rule import Example
from serve.doctor.rules import all_rules
from serve.installation import find
from serve.launcher import Settings, launch
from serve.management import admin

pytestmark = pytest.mark.server
assert all_rules()

COUNTS = f"""{HEAD}    def execute(self, requests):
        states = [pb_utils.get_input_tensor_by_name(request, "STATE").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", state), pb_utils.Tensor("NEXT", state + np.float32(1))])
            for state in states
        ]
"""
SLOTS = "max_queue_delay_microseconds: 5000000 minimum_slot_utilization: 1"
RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
LENGTHS = [{"x": np.ones((1, length), dtype=np.float32)} for length in range(1, 5)]
SEQUENCES = {
    "direct": telling(
        Example(f"max_batch_size: 4\n{RAGGED}\nsequence_batching {{ direct {{ {SLOTS} }} }}"), "len(requests)"
    ),
    # With an initial state: without it the tensor has undefined values.
    "S721": good("S722", files={"1/model.py": COUNTS}),
}


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server that holds no request back: the sequence batcher would wait for eight as well."""
    repository = tmp_path_factory.mktemp("sequences") / "repository"
    with launch(Settings(models=(), repository=prepared(repository), arguments=(AS_WRITTEN,))) as server:
        with grpc.InferenceServerClient(server.grpc_url) as client:
            for name in SEQUENCES:
                client.load_model(name, headers=admin.headers(server.grpc_url))
        yield Examiner(server=server, repository=repository)


def prepared(repository: Path) -> Path:
    for name, example in SEQUENCES.items():
        write(example, repository, name=name)
    return repository


def test_python_never_stores_the_state(sequences: Examiner) -> None:
    options: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": True}]
    assert [value(sequences, "S721", sequence_id=7, **flags) for flags in options] == [0, 0, 0]


def test_direct_sequences_share_ragged_batches(sequences: Examiner) -> None:
    """No rule forbids it: the strategy "direct" joins requests of different length when they are ragged."""
    with ThreadPoolExecutor(4) as pool:
        flags = {"sequence_start": True, "sequence_end": True}
        answers = pool.map(
            lambda number: value(sequences, "direct", LENGTHS[number], sequence_id=number + 1, **flags),
            range(len(LENGTHS)),
        )
        assert [*answers] == [4] * 4


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examiner]:
    """A server with a response cache and rate limits."""
    caches = find().binary.parents[1] / "caches"
    cache = ("--cache-config=local,size=1048576", f"--cache-directory={caches}")
    with examiner(tmp_path_factory.mktemp("limited"), AS_WRITTEN, *cache, "--rate-limit=execution_count") as triton:
        yield triton


def test_parameters_are_not_part_of_the_caches_key(limited: Examiner) -> None:
    assert limited.load(bad("W624")) == ""
    assert [value(limited, "example", parameters={"factor": factor}) for factor in (2, 3)] == [2, 2]
    assert settled(limited, "example", 2) == 1


def test_resources_are_global_or_local(limited: Examiner) -> None:
    assert limited.load(bad("I415")) == ""
    assert "is present as both global and device-specific resource" in limited.load_beside("other")
