"""The shared servers with examples of the doctor's rules, and what they answer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench
from doctor_examples import write
from numpy.typing import NDArray
from processes import wait_until
from streams import Stream
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype

from serve.doctor.rule import PYTHON_MODEL, Example
from serve.doctor.rules import all_rules
from serve.launcher import Server
from serve.management import api
from serve.management.statistics import Counters

RULES = {rule.code: rule for rule in all_rules()}
HELD = 8
"""So many requests the batchers of `held_bench` wait for, and so many rows a batch of most examples has."""
ANSWER_S = 30.0
ONE = np.ones((1, 2), dtype=np.float32)
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """A server with examples; `messages` has, for each, "" or why the server refused it."""

    server: Server
    messages: Mapping[str, str]

    def config(self, model: str) -> Any:
        """A loaded configuration as the server reports it."""
        return api.call(self.server.http_url, f"models/{model}/config")

    def counters(self, model: str) -> Counters:
        """The server's counters of a model."""
        return Counters.read(self.server.grpc_url, model)

    def refusals(self, requests: Sequence[Tensors], model: str) -> list[str]:
        """Send requests in this order, all in flight together; the messages of those that failed."""
        return [answer for answer in self._send(requests, model) if isinstance(answer, str)]

    def answers(self, requests: Sequence[Tensors], model: str) -> list[list[float]]:
        """The first column of the answers to such requests."""
        return [answer["y"][:, 0].tolist() for answer in self._send(requests, model) if isinstance(answer, dict)]

    def _send(self, requests: Sequence[Tensors], model: str) -> list[dict[str, NDArray[Any]] | str]:
        with Stream(self.server.grpc_url) as stream:
            return stream.send(model, requests)

    def batches(self, requests: Sequence[Tensors], model: str) -> dict[int, int]:
        """Send requests of one row each as `refusals` does; the executions by their number of rows."""
        assert self.refusals(requests, model) == []

        def counted() -> dict[int, int]:
            return dict(self.counters(model).batches)

        # The server counts an execution shortly after it has answered.
        wait_until(lambda: sum(rows * count for rows, count in counted().items()) >= len(requests), seconds=5)
        return counted()

    def executions(self, model: str, wanted: int) -> int:
        """The model's executions, as soon as they are as many as wanted."""
        wait_until(lambda: self.counters(model).executions >= wanted, seconds=5)
        return self.counters(model).executions

    def ask(
        self, model: str, inputs: Tensors | None = None, *, timeout_s: float = ANSWER_S, **options: Any
    ) -> dict[str, NDArray[Any]]:
        """The answer to a single request."""
        tensors = []
        for name, array in (inputs or {"x": ONE}).items():
            tensors.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            tensors[-1].set_data_from_numpy(array)
        with InferenceServerClient(self.server.grpc_url) as client:
            result = client.infer(model, tensors, client_timeout=timeout_s, **options)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    def value(self, model: str, inputs: Tensors | None = None, **options: Any) -> float:
        """The first number of the answer."""
        return float(self.ask(model, inputs, **options)["y"].flat[0])


@contextmanager
def examining(bench: Bench, folder: Path, examples: Mapping[str, Example]) -> Iterator[Examiner]:
    """Write examples into `folder`, which is new, and load each under its name."""
    for name, example in examples.items():
        write(example, folder, name=name)
    with bench.trying(list(examples), folder) as (server, messages):
        yield Examiner(server=server, messages=messages)


def bad(code: str, **changes: Any) -> Example:
    """The bad example of a rule, with these fields changed."""
    example = RULES[code].bad
    assert example is not None
    return replace(example, **changes)


def good(code: str, **changes: Any) -> Example:
    """The good example of a rule, with these fields changed."""
    example = RULES[code].good
    assert example is not None
    return replace(example, **changes)


def python(example: Example, model: str = PYTHON_MODEL, extra: str = "") -> Example:
    """The example with the Python backend, which starts in a third of the time."""
    return replace(example, config=f'backend: "python"\n{extra}\n{example.config}', files={"1/model.py": model})


def telling(example: Example, value: str, *, note: str = "pass") -> Example:
    """The example with a model.py whose answers hold this value, an expression of `request` and `requests`."""
    body = (
        f"{HEAD}    def initialize(self, args):\n        self.notes = []\n\n"
        f"    def execute(self, requests):\n        {note}\n"
        f"        values = [{value} for request in requests]\n"
        "        arrays = [np.full((1, 2), value, dtype=np.float32) for value in values]\n"
        '        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]\n'
    )
    config = str(example.config)
    backend = "" if "backend:" in config else 'backend: "python"\n'
    return replace(example, config=backend + config, files={**example.files, "1/model.py": body})
