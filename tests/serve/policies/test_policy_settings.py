"""The parameters of a batch policy, and the errors for invalid ones."""

from collections.abc import Callable
from typing import Any

import pytest
from backend_inputs import config, refusals

from serve.policies.batch_policy import Aimd, All, Deadline, create
from serve.policies.policy_settings import PolicyError, PolicySettings


def read(values: dict[str, str], **changes: Any) -> PolicySettings | None:
    return PolicySettings.of(config(values, **changes))


def test_settings_are_read_and_make_their_policy() -> None:
    for values in ({}, {"batch_policy": "all"}, {"batch_policy": "all", "slo_ms": "30"}):
        assert read(values, max_batch_size=0) is None
    aimd = read({"batch_policy": "aimd", "slo_ms": "30", "aimd_step": "2.5", "aimd_factor": "0.5"})
    assert aimd == PolicySettings(mode="aimd", max_rows=8, slo_s=0.03, step=2.5, factor=0.5, log=False)
    deadline = read({"batch_policy": "deadline", "slo_ms": "2.5", "batch_policy_log": "true"})
    assert deadline == PolicySettings(mode="deadline", max_rows=8, slo_s=0.0025, step=1.0, factor=0.9, log=True)
    every = PolicySettings(mode="all", max_rows=8, slo_s=1.0)
    assert [type(create(settings)) for settings in (aimd, deadline, every)] == [Aimd, Deadline, All]


def test_wrong_values_are_named(golden: Callable[..., None]) -> None:
    aimd = {"batch_policy": "aimd", "slo_ms": "9"}
    values: list[dict[str, str]] = [
        {"batch_policy": "AIMD"},
        {"batch_policy": "aimd"},
        *({"batch_policy": "deadline", "slo_ms": value} for value in ("0", "30ms", "nan", "inf")),
        aimd | {"aimd_step": "-1"},
        aimd | {"aimd_factor": "1"},
        aimd | {"batch_policy_log": "on"},
    ]
    models: dict[str, dict[str, Any]] = {
        "a model without batches": {"max_batch_size": 0},
        "a model with sequences": {"sequence_batching": {}},
        "a decoupled model": {"model_transaction_policy": {"decoupled": True}},
    }
    cases = {", ".join(f"{key} {text}" for key, text in each.items()): (config(each),) for each in values}
    cases |= {name: (config(aimd, **changes),) for name, changes in models.items()}
    golden("policy_settings", refusals(PolicySettings.of, cases))
    with pytest.raises(PolicyError) as caught:
        read(aimd | {"aimd_step": "-1"})
    assert caught.value.key == "aimd_step"
