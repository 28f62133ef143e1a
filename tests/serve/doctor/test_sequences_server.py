"""A real tritonserver shows what the rules say about sequences, caches and rate limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_server import AS_WRITTEN, HEAD, Examiner, bad, examiner, good, settled, value

from serve.doctor.example import write
from serve.doctor.rules import all_rules
from serve.installation import find
from serve.launcher import Settings, launch

pytestmark = pytest.mark.server
assert all_rules()

COUNTS = f"""{HEAD}    def execute(self, requests):
        states = [pb_utils.get_input_tensor_by_name(request, "STATE").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", state), pb_utils.Tensor("NEXT", state + np.float32(1))])
            for state in states
        ]
"""


def test_python_never_stores_the_state(tmp_path: Path) -> None:
    """Not on an `examiner`: its sequence batcher would wait for eight requests."""
    # With an initial state: without it the tensor has undefined values.
    write(good("S722", files={"1/model.py": COUNTS}), tmp_path, name="S721")
    with launch(Settings(models=("S721",), repository=tmp_path, arguments=(AS_WRITTEN,))) as server:
        triton = Examiner(server=server, repository=tmp_path)
        options: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": True}]
        assert [value(triton, "S721", sequence_id=7, **flags) for flags in options] == [0, 0, 0]


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
