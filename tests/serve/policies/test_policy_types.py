"""Every data type under both policies: hundreds of requests wait at once, and each answer equals its request."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from all_types import EXTREMES, NUMPY, echo
from answers import Answers, Array
from bench import Bench
from tiny_models import parameters, save

from serve.launcher import Server

pytestmark = pytest.mark.server
REQUESTS = 200
WIDTH = 512
"""Values of each type in a row: large enough for memory that is given back to be used again at once."""
POLICIES = {"aimd": "1000", "deadline": "60000"}
LONG, SHORT = 100_000, 3


def ragged_echo(repository: Path, name: str, settings: str) -> None:
    """Returns a ragged BF16 tensor unchanged, in about 10 ms for `LONG` elements."""
    slow = "\n".join(f"s{step + 1} = Sin(s{step})" for step in range(20))
    graph = f"""g (bfloat16[elements] X) => (bfloat16[elements] Y) {{
  s0 = Cast <to = 1> (X)
  {slow}
  nothing = Sub(s20, s20)
  same = Add(s0, nothing)
  Y = Cast <to = 16> (same)
}}"""
    config = (
        "max_batch_size: 16\n"
        'input [ { name: "X" data_type: TYPE_BF16 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        'output [ { name: "Y" data_type: TYPE_BF16 dims: [ -1 ] } ]\n'
        'batch_output [ { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" } ]\n'
        f"dynamic_batching {{ }}\n{settings}"
    )
    save(repository, name, graph, config)


def values(kind: str, number: int, width: int = WIDTH) -> Array:
    """A row of whole numbers that no other request has and every type can hold."""
    row = np.random.default_rng(number).integers(0, 100, (1, width))
    if kind == "STRING":
        return np.array([[b"%d of %d" % (value, number) for value in row[0]]], dtype=np.object_)
    return row.astype(EXTREMES[kind].dtype) if kind != "BOOL" else row > 50


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For each policy a model with all numpy types, one with BF16, and ragged BF16 whose batches are split."""
    repository = tmp_path_factory.mktemp("types")
    for policy, slo_ms in POLICIES.items():
        settings = parameters(batch_policy=policy, slo_ms=slo_ms)
        config = f"max_batch_size: 16\ndynamic_batching {{ }}\n{settings}"
        echo(repository, f"numpy_{policy}", NUMPY, config, width=WIDTH)
        echo(repository, f"bf16_{policy}", ["BF16"], config, width=WIDTH)
        cut = parameters(padding_budget="latency")
        ragged_echo(repository, f"ragged_{policy}", settings + cut)
    names = tuple(folder.name for folder in repository.iterdir())
    with bench.serving(names, repository) as running:
        yield running


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["numpy", "bf16", "ragged"])
def test_every_type_comes_back(server: Server, model: str, policy: str) -> None:
    """Short ragged items run before long ones."""
    requests = []
    for number in range(REQUESTS):
        types = NUMPY if model == "numpy" else ["BF16"]
        requests.append({f"x_{kind}": values(kind, number) for kind in types})
        if model == "ragged":
            requests[-1] = {"X": values("BF16", number, SHORT if number % 8 else LONG)}
    with Answers(server.grpc_url, f"{model}_{policy}") as sending:
        for request in requests:
            sending.send(request)
        answers = sending.all()
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert not isinstance(answer, str), answer
        for name, sent in request.items():
            output = name.replace("x_", "y_").replace("X", "Y")
            np.testing.assert_array_equal(answer[output], sent, err_msg=f"{output} of request {number}")
