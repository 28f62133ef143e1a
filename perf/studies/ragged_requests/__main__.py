"""Which ways to send requests of different length let Triton run them together.

`python -m perf.studies.ragged_requests` starts a server for each variant of `python_batched_service` in turn. It sends
200 requests of equal length and 200 of mixed length over each route, and prints the server's counts of executions. With
`--url` it uses a running server, and the routes that its loaded variant takes.
"""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import InferenceServerException

from clients import AsyncModel
from clients.errors import ServerUnreachableError
from perf.load.address import channel_arguments
from perf.studies.tables import plain_table
from serve.launcher import Settings, launch
from serve.management.statistics import Counters
from triton_batching.terminal import guarded, program_parser, terminal

FIELDS = ("width", "height", "label")
LARGEST = 2**31 - 2
MODEL = "python_batched_service"
REQUESTS = 200
EQUAL, MIXED = (20,), (20, 40, 60)
# As varints they take 0, 1, 2 and 3 bytes, since a message omits a 0.
NUMBERS = (0, 1, 300, 70_000)
PADDING = np.float32(np.nan)

Values = NDArray[np.float32]


def _message(name: str, field_type: "descriptor_pb2.FieldDescriptorProto.Type.ValueType") -> Any:
    """The message class of `message NAME { TYPE width = 1; TYPE height = 2; TYPE label = 3; }`."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="triton_batching", syntax="proto3")
    kind = file.message_type.add(name=name)
    for number, field in enumerate(FIELDS, start=1):
        optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        kind.field.add(name=field, number=number, type=field_type, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"triton_batching.{name}"))


_VARINT = _message("Varint", descriptor_pb2.FieldDescriptorProto.TYPE_INT32)
_FIXED = _message("Fixed", descriptor_pb2.FieldDescriptorProto.TYPE_FIXED32)


def varint(values: Sequence[int]) -> NDArray[np.uint8]:
    """The three values as `int32` fields: 0 to 33 bytes, depending on the values."""
    return _bytes(_VARINT(**dict(zip(FIELDS, values, strict=True))))


def fixed(values: Sequence[int]) -> NDArray[np.uint8]:
    """The three values + 1 as `fixed32` fields: always 15 bytes.

    Raises `ValueError` for a value below 0, which cannot be sent this way.
    """
    if min(values) < 0 or max(values) > LARGEST:
        raise ValueError(
            f"values {list(values)}: fixed32 with + 1 holds 0 to {LARGEST}. Send others as text or floats."
        )
    return _bytes(_FIXED(**{field: value + 1 for field, value in zip(FIELDS, values, strict=True)}))


def _bytes(message: Any) -> NDArray[np.uint8]:
    return np.frombuffer(message.SerializeToString(), dtype=np.uint8)


@dataclass(frozen=True, kw_only=True)
class MixedRequest:
    """One request of one row, and its right answer."""

    array: NDArray[np.generic]
    sum: float
    length: int


@dataclass(frozen=True, kw_only=True)
class RequestRoute:
    """A way to send values: the variant that takes it, and its requests by count, lengths in turn and seed."""

    name: str
    config_name: str | None
    requests: Callable[[int, Sequence[int], int], list[MixedRequest]]


@dataclass(frozen=True, kw_only=True)
class RouteResult:
    """The result of one load: the number of right answers, and the server's counters."""

    route: str
    load: str
    sent: int
    right: int
    wasted: float
    counted: Counters


def draw(count: int, lengths: Sequence[int], seed: int) -> Iterator[Values]:
    """Whole numbers as float32, so that sums are exact; the lengths are used in turn."""
    rng = np.random.default_rng(seed)
    for length in itertools.islice(itertools.cycle(lengths), count):
        yield rng.integers(0, 1000, length).astype(np.float32)


def as_they_are(count: int, lengths: Sequence[int], seed: int) -> list[MixedRequest]:
    """FP32 [1, length]."""
    return [_request(values[None], values) for values in draw(count, lengths, seed)]


def padded(count: int, lengths: Sequence[int], seed: int) -> list[MixedRequest]:
    """FP32 [1, longest of all], filled with NaN: the client must know the longest length, and the model the padding."""
    longest = max(lengths)
    return [
        _request(np.pad(values, (0, longest - len(values)), constant_values=PADDING)[None], values)
        for values in draw(count, lengths, seed)
    ]


def as_bytes(count: int, lengths: Sequence[int], seed: int) -> list[MixedRequest]:
    """STRING [1, 1]: the bytes of the values."""
    return [_request(np.array([[values.tobytes()]], dtype=np.object_), values) for values in draw(count, lengths, seed)]


def _request(array: NDArray[np.generic], values: Values) -> MixedRequest:
    return MixedRequest(array=array, sum=float(values.sum()), length=len(values))


def _messages(
    write: Callable[[Sequence[int]], NDArray[np.uint8]], count: int, lengths: Sequence[int], *, zeros: int
) -> list[MixedRequest]:
    # The length of a message depends on its numbers: equal numbers for equal lengths, else mixed numbers.
    numbers = NUMBERS if len(lengths) > 1 else NUMBERS[1:2]
    requests = []
    for number in itertools.islice(itertools.cycle(numbers), count):
        fields = len(FIELDS) - zeros * (2 if number == 0 else 1)
        requests.append(MixedRequest(array=write((number, 0, 5))[None], sum=number + 5.0, length=fields))
    return requests


def varints(count: int, lengths: Sequence[int], seed: int) -> list[MixedRequest]:
    """UINT8 [1, bytes]: messages with `int32` fields, of different length for different numbers; zeros are omitted."""
    return _messages(varint, count, lengths, zeros=1)


def fixeds(count: int, lengths: Sequence[int], seed: int) -> list[MixedRequest]:
    """UINT8 [1, 15]: messages with `fixed32` fields that hold number + 1."""
    return _messages(fixed, count, lengths, zeros=0)


ROUTES = (
    RequestRoute(name="separate executions", config_name="separate", requests=as_they_are),
    RequestRoute(name="client padding", config_name="separate", requests=padded),
    RequestRoute(name="ragged", config_name=None, requests=as_they_are),
    RequestRoute(name="TYPE_STRING bytes", config_name="bytes", requests=as_bytes),
    RequestRoute(name="protobuf int32", config_name="message", requests=varints),
    RequestRoute(name="protobuf fixed32 + 1", config_name="message", requests=fixeds),
)


def fitting(config: ModelConfig) -> tuple[RequestRoute, ...]:
    """The routes that a server with this configuration takes."""
    values = config.input[0]
    data_type = DataType.Name(values.data_type)
    variant = {"TYPE_STRING": "bytes", "TYPE_UINT8": "message"}.get(data_type, "separate")
    config_name = None if values.allow_ragged_batch else variant
    return tuple(route for route in ROUTES if route.config_name == config_name)


async def send(url: str, requests: Sequence[MixedRequest], *, gap_s: float = 0.0, model: str = MODEL) -> int:
    """Send all requests together, or `gap_s` seconds apart; returns the number of right answers."""
    async with AsyncModel(model, url=url) as served:

        async def is_right(index: int, request: MixedRequest) -> bool:
            await asyncio.sleep(index * gap_s)
            total, length = await served.predict(request.array)
            return bool(total.item() == request.sum and length.item() == request.length)

        return sum(await asyncio.gather(*(is_right(index, request) for index, request in enumerate(requests))))


def measure(
    url: str, route: RequestRoute, lengths: Sequence[int], *, count: int = REQUESTS, model: str = MODEL
) -> RouteResult:
    """One load on a running server; raises `ClientError`."""
    requests = route.requests(count, lengths, 0)
    before = Counters.read(url, model)
    right = asyncio.run(send(url, requests, model=model))
    elements = sum(request.array.size for request in requests)
    values = sum(request.length for request in requests) if route.requests is padded else elements
    return RouteResult(
        route=route.name,
        load="equal" if len(lengths) == 1 else "mixed",
        sent=count,
        right=right,
        wasted=1 - values / elements,
        counted=Counters.read(url, model) - before,
    )


def compare(routes: Sequence[RequestRoute], url: str, count: int, model: str = MODEL) -> Iterator[RouteResult]:
    """Measure both loads over each route."""
    for route, lengths in itertools.product(routes, (EQUAL, MIXED)):
        yield measure(url, route, lengths, count=count, model=model)


def compare_all(console: Console, count: int) -> Iterator[RouteResult]:
    """Measure every route, on a server with its variant."""
    for config_name, routes in itertools.groupby(ROUTES, key=lambda route: route.config_name):
        with (
            console.status(f"{MODEL} {config_name or 'config.pbtxt'}"),
            launch(Settings(models=(MODEL,), config_name=config_name)) as server,
        ):
            yield from compare(tuple(routes), server.grpc_url, count)


def served_config(url: str, model: str) -> ModelConfig:
    """The configuration that the server at `url` has loaded; raises `ServerUnreachableError`."""
    try:
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:
            return client.get_model_config(model).config
    except InferenceServerException as error:
        raise ServerUnreachableError(
            f"{url}: '{model}' does not answer ({error}). Serve it: make serve MODEL={model}.",
            text=error.message(),
            model=model,
            url=url,
        ) from error


def table(results: Sequence[RouteResult]) -> Table:
    """The results for a terminal; executions and rows per execution are the server's counts."""
    rows = plain_table(("route", "lengths", "sent", "executions", "rows/exec", "padded", "right"), left=2)
    for result in results:
        rows.add_row(
            result.route,
            result.load,
            str(result.sent),
            str(result.counted.executions),
            f"{result.counted.rows_per_execution:.2f}",
            f"{result.wasted:.0%}",
            str(result.right),
        )
    return rows


def show(url: str | None, model: str, count: int) -> int:
    """Print the comparison; returns 1 if an answer was wrong."""
    console = terminal()
    if url:
        results = list(compare(fitting(served_config(url, model)), url, count, model))
    else:
        results = list(compare_all(console, count))
    console.print(table(results))
    return 1 if any(result.right < result.sent for result in results) else 0


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; exit code 1 if an answer was wrong, 2 for a mistake or without a server."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: show(arguments.url, arguments.model, arguments.requests))


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m perf.studies.ragged_requests",
        __doc__,
        example="--url localhost:8001 (in another terminal: make serve MODEL=python_batched_service CONFIG=separate)",
    )
    parser.add_argument("--url", help="gRPC address of a running server (default: start a server for each variant)")
    parser.add_argument("--model", default=MODEL, help=f"name of the model on that server (default {MODEL})")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="per load (default 200)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
