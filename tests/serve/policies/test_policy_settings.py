"""The parameters of a batch policy, and the errors for invalid ones."""

from typing import Any

import pytest

from serve.policies.batch_policy import Aimd, All, Deadline, create
from serve.policies.policy_settings import KEYS, MODES, PolicyError, PolicySettings


def config(max_batch_size: int = 8, /, **values: str) -> dict[str, Any]:
    parameters = {key: {"string_value": value} for key, value in values.items()}
    return {"name": "m", "max_batch_size": max_batch_size, "parameters": parameters}


@pytest.mark.parametrize("values", [{}, {"batch_policy": "all"}, {"batch_policy": "all", "slo_ms": "30"}])
def test_without_a_policy_there_are_no_settings(values: dict[str, str]) -> None:
    assert PolicySettings.of(config(0, **values)) is None


def test_settings_are_read_and_make_their_policy() -> None:
    settings = PolicySettings.of(config(batch_policy="aimd", slo_ms="30", aimd_step="2.5", aimd_factor="0.5"))
    assert settings == PolicySettings(mode="aimd", max_rows=8, slo_s=0.03, step=2.5, factor=0.5, log=False)
    assert isinstance(create(settings), Aimd)
    settings = PolicySettings.of(config(batch_policy="deadline", slo_ms="2.5", batch_policy_log="true"))
    assert settings == PolicySettings(mode="deadline", max_rows=8, slo_s=0.0025, step=1.0, factor=0.9, log=True)
    assert isinstance(create(settings), Deadline)
    assert isinstance(create(PolicySettings(mode="all", max_rows=8, slo_s=1.0)), All)
    assert {"batch_policy", "slo_ms", "aimd_step", "aimd_factor", "batch_policy_log"} == set(KEYS)
    assert MODES == ("all", "aimd", "deadline")


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"batch_policy": "AIMD"}, "batch_policy", "has batch_policy 'AIMD', which is none of all, aimd, deadline"),
        ({"batch_policy": "aimd"}, "batch_policy", "has batch_policy 'aimd' and no slo_ms"),
        ({"batch_policy": "deadline", "slo_ms": "0"}, "slo_ms", "slo_ms '0', which is not a number more than 0"),
        ({"batch_policy": "deadline", "slo_ms": "30ms"}, "slo_ms", "slo_ms '30ms', which is not a number more than 0"),
        ({"batch_policy": "aimd", "slo_ms": "nan"}, "slo_ms", "slo_ms 'nan', which is not a number more than 0"),
        ({"batch_policy": "aimd", "slo_ms": "inf"}, "slo_ms", "slo_ms 'inf', which is not a number more than 0"),
        ({"batch_policy": "aimd", "slo_ms": "9", "aimd_step": "-1"}, "aimd_step", "not a number more than 0"),
        ({"batch_policy": "aimd", "slo_ms": "9", "aimd_factor": "1"}, "aimd_factor", "not a number between 0 and 1"),
        ({"batch_policy": "aimd", "slo_ms": "9", "batch_policy_log": "on"}, "batch_policy_log", "not true or false"),
    ],
)
def test_wrong_values_are_named(values: dict[str, str], key: str, text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        PolicySettings.of(config(**values))
    assert caught.value.key == key
    assert text in str(caught.value)
    assert str(caught.value).startswith("model 'm' has batch_policy '")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"max_batch_size": 0}, "max_batch_size 0, so it has no batches"),
        ({"sequence_batching": {}}, "sequence_batching, whose order a policy would break"),
        ({"model_transaction_policy": {"decoupled": True}}, "is decoupled"),
    ],
)
def test_models_without_batches_of_their_own_have_no_policy(extra: dict[str, Any], text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        PolicySettings.of(config(batch_policy="aimd", slo_ms="30") | extra)
