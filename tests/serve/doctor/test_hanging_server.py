"""A tritonserver of its own shows which models hang or end the server: it is of no use afterwards."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from doctor_examples import write
from doctor_server import bad, examining
from processes import wait_until
from tritonclient.utils import InferenceServerException

from serve.management import api

pytestmark = pytest.mark.server
# Ten times as long as a request to this model would take.
HANGS_S = 1.5


def load(bench: Bench, model: str) -> bool:
    """Load the bad example of a rule; whether the server has ended. Raises `RefusedError`."""
    server = bench.server()
    write(bad(model), server.settings.repository, name=model)
    with pytest.raises(api.UnreachableError):
        api.call(server.http_url, f"repository/models/{model}/load", {}, timeout_s=60)
    return wait_until(lambda: not server.running(), seconds=10)


def test_a_hanging_model_and_models_that_end_the_server(tmp_path: Path) -> None:
    """In this order: a server that has ended need not be stopped, which would wait for the request that hangs."""
    bench = Bench(folder=tmp_path / "bench")
    text: dict[str, Any] = {"sequence_id": "x" * 128, "sequence_start": True, "sequence_end": True}
    gone = contextlib.suppress(InferenceServerException, api.UnreachableError)
    with gone, examining(bench, tmp_path / "texts", {"S716": bad("S716")}) as triton:
        triton.ask("S716", **text)
    assert wait_until(lambda: not triton.server.running(), seconds=10)
    # It ends in some of the loads only.
    with contextlib.suppress(api.RefusedError):
        assert load(bench, "W605")
    with examining(bench, tmp_path / "models", {"M822": bad("M822")}) as triton:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            triton.ask("M822", timeout_s=HANGS_S)
        assert load(bench, "R332")
    bench.close()
