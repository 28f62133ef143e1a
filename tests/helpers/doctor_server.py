"""A real tritonserver that loads examples of the doctor's rules and returns its messages."""

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from doctor_examples import NAME, write
from numpy.typing import NDArray
from processes import wait_until
from streams import Stream
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc import aio as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from serve.doctor.rule import RULES, Example
from serve.launcher import Server, Settings, launch
from serve.management import admin
from serve.management.statistics import Counters

HELD = 8
"""The batcher of every model waits for this number of queued requests, so that no timing matters."""
ANSWER_S = 30.0
AS_WRITTEN = "--disable-auto-complete-config"
"""Loads configurations that are complete in half of the time, because no second process looks into each model."""
ONE = np.ones((1, 2), dtype=np.float32)
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """The server and its repository, in which each example replaces the one before."""

    server: Server
    repository: Path

    def load(self, example: Example) -> str:
        """Load an example: "" if the server takes it, else its message and its log."""
        self._clear()
        scratch = self.repository.parent / "scratch"
        write(example, scratch)
        for folder in scratch.iterdir():
            folder.rename(self.repository / folder.name)
        scratch.rmdir()
        logged = self.server.log.stat().st_size
        refusal = self._call(f"repository/models/{NAME}/load")
        if not refusal:
            return ""
        return refusal + self._log(logged)

    def load_beside(self, model: str) -> str:
        """Load another model of the example; returns the same as `load`."""
        logged = self.server.log.stat().st_size
        refusal = self._call(f"repository/models/{model}/load")
        return refusal + self._log(logged) if refusal else ""

    def load_together(
        self, examples: Mapping[str, Example], *, at_a_time: int = 4, clear: bool = True
    ) -> dict[str, str]:
        """Load many examples at a time, each under its own name; returns the same as `load` for each.

        Of the log it has the lines that name the model. Without `clear` those that were loaded before stay.
        """
        if clear:
            self._clear()
        logged = self.server.log.stat().st_size
        for name, example in examples.items():
            write(example, self.repository, name=name)
        with ThreadPoolExecutor(at_a_time) as pool:
            calls = {name: pool.submit(self._call, f"repository/models/{name}/load") for name in examples}
            answers = {name: call.result() for name, call in calls.items()}
        # A failed load beside others is sometimes answered as a success; the index is right.
        failed = {
            entry["name"]: entry.get("reason", "") for entry in self.index() if entry.get("state") == "UNAVAILABLE"
        }
        answers = {name: answer or failed.get(name, "") for name, answer in answers.items()}
        lines = self._log(logged).splitlines()
        return {
            name: "\n".join([answer, *(line for line in lines if name in line)]) if answer else ""
            for name, answer in answers.items()
        }

    def _log(self, since: int) -> str:
        with self.server.log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def config(self, model: str = NAME) -> Any:
        """A loaded example's configuration as the server reports it."""
        return json.loads(self._get(f"models/{model}/config"))

    def batches(
        self,
        requests: Sequence[Mapping[str, NDArray[Any]]],
        *,
        model: str = NAME,
        gap_s: float | None = None,
        **options: Any,
    ) -> dict[int, int]:
        """Send requests in this order, all in flight together; executions by their number of rows.

        With a `gap_s` each is a call of its own, so many seconds after the one before, and a busy machine may change
        the order. `options` go to tritonclient: priority, timeout (us), sequence_id. Raises at the first refusal.
        """
        rows = self.counters(model).rows + sum(len(next(iter(inputs.values()))) for inputs in requests)
        for refusal in self.refusals(requests, model=model, gap_s=gap_s, **options):
            raise AssertionError(refusal)

        # The server counts an execution shortly after it has answered.
        def is_counted() -> bool:
            counters = self.counters(model)
            return min(counters.rows, sum(size * count for size, count in counters.batches.items())) >= rows

        wait_until(is_counted, seconds=5)
        return dict(self.counters(model).batches)

    def refusals(
        self,
        requests: Sequence[Mapping[str, NDArray[Any]]],
        *,
        model: str = NAME,
        gap_s: float | None = None,
        **options: Any,
    ) -> list[str]:
        """Send requests as `batches` does; returns the messages of those that failed."""
        if gap_s is not None:
            return [message for message in asyncio.run(self._send(requests, model, gap_s, options)) if message]
        with Stream(self.server.grpc_url) as stream:
            return [answer for answer in stream.send(model, requests, **options) if isinstance(answer, str)]

    def counters(self, model: str = NAME) -> Counters:
        """The server's counters of a model."""
        return Counters.read(self.server.grpc_url, model)

    def statistics(self, model: str = NAME) -> Any:
        """The server's statistics of a model, as JSON."""
        return json.loads(self._get(f"models/{model}/stats"))["model_stats"][0]

    def index(self) -> list[dict[str, str]]:
        """The server's repository index."""
        index: list[dict[str, str]] = json.loads(self._call("repository/index"))
        return index

    async def _send(
        self, requests: Sequence[Mapping[str, NDArray[Any]]], model: str, gap_s: float, options: Mapping[str, Any]
    ) -> list[str]:
        async with triton.InferenceServerClient(self.server.grpc_url) as client:

            async def send(index: int, inputs: Mapping[str, NDArray[Any]]) -> str:
                await asyncio.sleep(index * gap_s)
                try:
                    await client.infer(model, [_tensor(name, array) for name, array in inputs.items()], **options)
                except InferenceServerException as error:
                    return str(error)
                return ""

            return await asyncio.gather(*(send(index, inputs) for index, inputs in enumerate(requests)))

    def _clear(self) -> None:
        """Unload everything and wait until it is gone: the server fails if a load overtakes an unload."""
        for folder in self.repository.iterdir():
            self._call(f"repository/models/{folder.name}/unload")

        def is_empty() -> bool:
            entries = [(entry.get("state", "UNAVAILABLE"), entry.get("reason")) for entry in self.index()]
            return all(state == "UNAVAILABLE" and reason != "unloading" for state, reason in entries)

        assert wait_until(is_empty, seconds=10), f"still there: {self.index()}"
        for folder in self.repository.iterdir():
            shutil.rmtree(folder)

    def _call(self, path: str) -> str:
        """POST; the body of the answer."""
        request = urllib.request.Request(
            f"http://{self.server.http_url}/v2/{path}", data=b"{}", headers=admin.headers(self.server.http_url)
        )
        try:
            with urllib.request.urlopen(request, timeout=45) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode(errors="replace")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.server.http_url}/v2/{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body


def _tensor(name: str, array: NDArray[Any]) -> InferInput:
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


@contextmanager
def examiner(
    folder: Path, *arguments: str, config_name: str | None = None, held: int | None = HELD
) -> Iterator[Examiner]:
    """Start a server below `folder` without models; further `arguments` go to tritonserver.

    With a `config_name` every model is loaded as that variant, if it has it. The batcher of every model waits for
    `held` requests once; with None it runs as always.
    """
    repository = folder / "repository"
    repository.mkdir()
    settings = Settings(
        models=(),
        config_name=config_name,
        repository=repository,
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(held)} if held is not None else {},
        arguments=arguments,
        log=folder / "tritonserver.log",  # where pytest keeps it when a test fails
    )
    with launch(settings) as server:
        yield Examiner(server=server, repository=repository)


@contextmanager
def serving(
    make_folder: Callable[[str], Path],
    models: Mapping[str, Example],
    *arguments: str,
    config_name: str | None = None,
    held: int | None = HELD,
) -> Iterator[tuple[Examiner, dict[str, str]]]:
    """Start a server that has tried to load `models`; yields it with the messages of `load_together`.

    Now and then 2.51 crashes while it loads or warms up several models at a time (boost's lock_exception,
    pthread_mutex_lock). Then another server loads them one at a time.
    """
    for at_a_time, is_last in ((4, False), (1, False), (1, True)):
        with examiner(make_folder("examiner"), *arguments, config_name=config_name, held=held) as triton:
            try:
                messages = triton.load_together(models, at_a_time=at_a_time)
            except OSError:
                # The connection ends a moment before the server has ended.
                has_crashed = wait_until(lambda: not triton.server.running(), seconds=10)
                if is_last or not has_crashed:
                    raise
                continue
            yield triton, messages
            return


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


def ask(
    triton: Examiner, model: str, inputs: Tensors, *, timeout_s: float = ANSWER_S, **options: Any
) -> dict[str, NDArray[Any]]:
    """The answer to a single request; the inputs are sent in this order."""
    tensors = [_tensor(name, array) for name, array in inputs.items()]
    with InferenceServerClient(triton.server.grpc_url) as client:
        result = client.infer(model, tensors, client_timeout=timeout_s, **options)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def value(triton: Examiner, model: str, inputs: Tensors | None = None, **options: Any) -> float:
    return float(ask(triton, model, inputs or {"x": ONE}, **options)["y"].flat[0])


def settled(triton: Examiner, model: str, wanted: int) -> int:
    """The model's executions, as soon as they are as many as wanted, at most after a second."""
    wait_until(lambda: triton.counters(model).executions >= wanted, seconds=1)
    return triton.counters(model).executions
