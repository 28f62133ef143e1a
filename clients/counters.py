"""The server's own counters for one model, read over gRPC from its statistics endpoint."""

import contextlib
from collections.abc import Callable, Iterator

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from clients.connection import channel_arguments
from clients.errors import RequestFailedError
from serve.management import counters


class Counters(counters.Counters):
    """What a server counted, from its gRPC address."""

    @classmethod
    def read(cls, url: str, model: str) -> "Counters":
        """Ask the server at `host:port` (gRPC); raises `RequestFailedError`."""
        with cls.reader(url, model) as read:
            return read()

    @classmethod
    @contextlib.contextmanager
    def reader(cls, url: str, model: str) -> "Iterator[Callable[[], Counters]]":
        """Ask again and again over one connection, for those who poll; each call raises `RequestFailedError`."""
        with triton.InferenceServerClient(url, channel_args=channel_arguments(url)) as client:

            def read() -> "Counters":
                try:
                    return cls.total(client.get_inference_statistics(model).model_stats)
                except InferenceServerException as error:
                    raise RequestFailedError(
                        f"{url}: no statistics for '{model}': {error}", text=error.message(), model=model, url=url
                    ) from error

            yield read
