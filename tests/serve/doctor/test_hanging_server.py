"""A real tritonserver shows which models hang or crash the server."""

from pathlib import Path

import pytest
from doctor_examples import write
from doctor_server import AS_WRITTEN, ONE, Examiner, ask, bad, examiner, serving
from processes import wait_until
from tritonclient.utils import InferenceServerException

from serve.doctor.rules import all_rules

pytestmark = pytest.mark.server
assert all_rules()
# Ten times as long as a request to this model would take.
HANGS_S = 1.5


def ended(triton: Examiner) -> bool:
    return wait_until(lambda: not triton.server.running(), seconds=10)


def test_no_response_hangs_and_a_wrong_batch_output_ends_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In this order: a server that has ended need not be stopped, which would wait for the request that hangs."""
    with serving(tmp_path_factory.mktemp, {"M822": bad("M822")}, AS_WRITTEN) as (triton, messages):
        assert messages == {"M822": ""}
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            ask(triton, "M822", {"x": ONE}, timeout_s=HANGS_S)
        write(bad("R332"), triton.repository, name="R332")
        with pytest.raises(OSError, match=r"closed|reset|refused"):
            triton.load_beside("R332")
        assert ended(triton)


def test_a_warm_up_that_fails_is_refused_or_ends_the_server(tmp_path: Path) -> None:
    with examiner(tmp_path) as triton:
        try:
            assert "failed to run warmup sample" in triton.load(bad("W605"))
        except OSError:
            assert ended(triton)
