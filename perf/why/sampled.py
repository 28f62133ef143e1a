"""What a running server counts for one model, over HTTP."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from perf.batcher.instances import ServiceTime
from perf.why.service import table
from serve.management import admin
from serve.management.counters import Counters
from serve.management.loaded import DIRECT
from triton_batching.terminal import Failure, Mistake


class ServerError(Failure, Mistake):
    """No server, no such model, or an answer that is no statistics."""


class RestrictedError(ServerError):
    """The server wants a secret that this user does not have."""


def counters(url: str, model: str) -> Counters:
    """Ask the server at `url` (http://host:port); raises `ServerError`."""
    found = call(f"{url}/v2/models/{model}/stats")
    return Counters.total(
        json_format.ParseDict(found, ModelStatisticsResponse(), ignore_unknown_fields=True).model_stats
    )


def service(counted: Counters) -> ServiceTime:
    """Mean time of an execution by its rows, as counted."""
    return table({rows: counted.execution_ns(rows) // count for rows, count in counted.batches.items()})


def call(url: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON that the server answers; raises `ServerError` with its words."""
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data=data, headers=admin.headers(url))
        with DIRECT.open(request, timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.FORBIDDEN:
            raise RestrictedError(
                f"{url}: the server keeps this for the user who started it. Run this as that user, on its machine."
            ) from error
        raise ServerError(
            f"{url}: the server answered {error.code}: {error.read().decode(errors='replace')[:300]}"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(
            f"{url}: no Triton server answers there ({error}). Give its HTTP address (not that of gRPC), for example http://localhost:8000."
        ) from error
