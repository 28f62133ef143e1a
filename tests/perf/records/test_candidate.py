"""A candidate changes its own values of a configuration and nothing else."""

import dataclasses
import json

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records.candidate import Candidate

BOTH = 'instance_group { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] host_policy: "near" }'
APART = "instance_group { count: 1 kind: KIND_GPU gpus: 0 } instance_group { count: 1 kind: KIND_GPU gpus: 1 }"


def config(groups: str) -> ModelConfig:
    return text_format.Parse(
        f'name: "m" backend: "python" max_batch_size: 8 dynamic_batching {{ }} {groups}', ModelConfig()
    )


@pytest.mark.parametrize("groups", [BOTH, APART, "instance_group { kind: KIND_CPU count: 3 }"])
def test_applying_its_own_values_does_not_change_a_configuration(groups: str) -> None:
    assert Candidate.of(config(groups)).apply(config(groups)) == config(groups)


def test_instances_are_counted_over_all_gpus() -> None:
    applied = Candidate(max_batch_size=8, instances=4).apply(config(BOTH))
    (group,) = applied.instance_group
    assert (group.count, list(group.gpus), group.host_policy) == (2, [0, 1], "near")
    assert Candidate.of(applied).instances == 4


def test_a_candidate_reads_back_equal_from_json() -> None:
    made = Candidate(max_batch_size=8, delay_us=2000, instances=2, threads=1, preferred=(4, 8))
    assert Candidate.read(json.loads(json.dumps(dataclasses.asdict(made)))) == made
    with pytest.raises(TypeError):
        Candidate.read({"max_batch_size": 8, "preferred": [], "another": 1})
