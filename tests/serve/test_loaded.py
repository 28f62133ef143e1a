"""The comparison of a loaded configuration with the one asked for."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.management.loaded import differences

ASKED = """
name: "m" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] } ]
instance_group [ { count: 2 } ]
parameters { key: "fixed_ms" value { string_value: "20" } }
dynamic_batching { max_queue_delay_microseconds: 100 }
"""


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def changed(old: str, new: str) -> list[str]:
    assert old in ASKED
    return list(differences(config(ASKED), config(ASKED.replace(old, new))))


def test_fields_that_the_server_completes_are_no_difference() -> None:
    filled = ASKED.replace("count: 2", 'count: 2 name: "m_0" kind: KIND_CPU') + 'runtime: "model.py"'
    assert not list(differences(config(ASKED), config(filled)))


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch_size: 8 in the file, 4 loaded"),
        ("count: 2", "count: 1", "instance_group[0].count: 2 in the file, 1 loaded"),
        ("[ 1, 2 ]", "[ 1 ]", "input[0].dims: 2 in the file, 1 loaded"),
        ('"20"', '"30"', "parameters[fixed_ms].string_value: 20 in the file, 30 loaded"),
    ],
)
def test_a_changed_value_is_a_difference(old: str, new: str, difference: str) -> None:
    assert changed(old, new) == [difference]


def test_a_missing_scheduler_is_a_difference() -> None:
    assert "dynamic_batching: in the file, but not loaded" in changed(
        "dynamic_batching { max_queue_delay_microseconds: 100 }", ""
    )


def test_a_scheduler_that_was_not_asked_for_is_a_difference() -> None:
    """The sign of tritonserver's silent fallback from a baseline variant to config.pbtxt."""
    baseline = config(ASKED.replace("dynamic_batching { max_queue_delay_microseconds: 100 }", ""))
    assert list(differences(baseline, config(ASKED))) == ["dynamic_batching: not in the file, but loaded"]


@pytest.mark.parametrize("silent", ["", "max_batch_size: 8", 'input [ { name: "x" } ]', 'output [ { name: "y" } ]'])
def test_a_file_that_leaves_the_tensors_to_the_server_may_get_batching(silent: str) -> None:
    completed = 'max_batch_size: 8 input [ { name: "x" } ] output [ { name: "y" } ] dynamic_batching { }'
    assert not list(differences(config(silent), config(completed)))
    preferred = completed.replace("{ }", "{ preferred_batch_size: [ 8 ] }").rstrip()
    assert preferred.endswith("[ 8 ] }")
    assert not list(differences(config(silent), config(preferred)))


@pytest.mark.parametrize(
    ("text", "batching"),
    [
        ('max_batch_size: 8 input [ { name: "x" } ] output [ { name: "y" } ]', ""),
        ("", "max_queue_delay_microseconds: 100"),
        ("", "preferred_batch_size: [ 4 ]"),
    ],
)
def test_batching_that_no_server_adds_by_itself_is_a_difference(text: str, batching: str) -> None:
    completed = 'max_batch_size: 8 input [ { name: "x" } ] output [ { name: "y" } ] '
    loaded = config(completed + f"dynamic_batching {{ {batching} }}")
    assert list(differences(config(text), loaded)) == ["dynamic_batching: not in the file, but loaded"]
