"""Every data type under every policy: hundreds of requests wait at once, and each answer equals its request."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from all_types import EXTREMES, NUMPY, echo
from answers import Answers, Array
from bench import Bench
from onnx import TensorProto, helper
from tiny_models import parameters, save

from serve.launcher import Server

pytestmark = pytest.mark.server
REQUESTS = 300
WIDTH = 512
"""Values of each type in a row: large enough for memory that is given back to be used again at once."""
POLICIES = {
    "all": {"batch_policy": "all"},
    "aimd": {"batch_policy": "aimd", "slo_ms": "1000"},
    "deadline": {"batch_policy": "deadline", "slo_ms": "60000"},
}
LONG, SHORT = 100_000, 3


def ragged_echo(repository: Path, name: str, settings: dict[str, str]) -> None:
    """Returns a ragged BF16 tensor unchanged, in about 10 ms for `LONG` elements."""
    slow = [helper.make_node("Sin", [f"s{step}"], [f"s{step + 1}"]) for step in range(20)]
    nodes = [
        helper.make_node("Cast", ["X"], ["s0"], to=TensorProto.FLOAT),
        *slow,
        helper.make_node("Sub", ["s20", "s20"], ["nothing"]),
        helper.make_node("Add", ["s0", "nothing"], ["same"]),
        helper.make_node("Cast", ["same"], ["Y"], to=TensorProto.BFLOAT16),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["elements"]) for name in "XY")
    save(
        repository,
        name,
        helper.make_graph(nodes, "g", [x], [y]),
        "max_batch_size: 16\n"
        'input [ { name: "X" data_type: TYPE_BF16 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        'output [ { name: "Y" data_type: TYPE_BF16 dims: [ -1 ] } ]\n'
        'batch_output [ { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" } ]\n'
        f"dynamic_batching {{ }}\n{parameters(**settings)}",
    )


def values(kind: str, number: int, width: int = WIDTH) -> Array:
    """A row of whole numbers that no other request has and every type can hold."""
    row = np.random.default_rng(number).integers(0, 100, (1, width))
    if kind == "STRING":
        return np.array([[b"%d of %d" % (value, number) for value in row[0]]], dtype=np.object_)
    return row.astype(EXTREMES[kind].dtype) if kind != "BOOL" else row > 50


@pytest.fixture(scope="module")
def server(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For each policy a model with all numpy types, one with BF16, and ragged BF16 with early answers."""
    repository = tmp_path_factory.mktemp("types")
    for policy, settings in POLICIES.items():
        config = f"max_batch_size: 16\ndynamic_batching {{ }}\n{parameters(**settings)}"
        echo(repository, f"numpy_{policy}", NUMPY, config, width=WIDTH)
        echo(repository, f"bf16_{policy}", ["BF16"], config, width=WIDTH)
        cut = {"padding_budget": "elements", "padding_budget_run_elements": "10"}
        ragged_echo(repository, f"ragged_{policy}", settings | cut)
    names = tuple(folder.name for folder in repository.iterdir())
    with bench.serving(names, repository) as running:
        yield running


def check(server: Server, model: str, requests: list[dict[str, Array]]) -> None:
    """Send all at once; every answer equals its own request."""
    with Answers(server.grpc_url, model) as sending:
        for request in requests:
            sending.send(request)
        answers = sending.all()
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert not isinstance(answer, str), answer
        for name, sent in request.items():
            output = name.replace("x_", "y_").replace("X", "Y")
            np.testing.assert_array_equal(answer[output], sent, err_msg=f"{output} of request {number}")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_type_of_numpy_comes_back(server: Server, policy: str) -> None:
    requests = [{f"x_{kind}": values(kind, number) for kind in NUMPY} for number in range(REQUESTS)]
    check(server, f"numpy_{policy}", requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_bf16_alone_comes_back(server: Server, policy: str) -> None:
    check(server, f"bf16_{policy}", [{"x_BF16": values("BF16", number)} for number in range(REQUESTS)])


@pytest.mark.parametrize("policy", POLICIES)
def test_bf16_that_is_answered_early_comes_back(server: Server, policy: str) -> None:
    """Short items run before long ones, and are answered while those run."""
    lengths = [LONG if number % 8 == 0 else SHORT for number in range(REQUESTS)]
    check(server, f"ragged_{policy}", [{"X": values("BF16", number, length)} for number, length in enumerate(lengths)])
