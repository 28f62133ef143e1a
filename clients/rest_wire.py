"""The bytes of a call over HTTP and of its answer: KServe v2 with binary tensors.

The head of an inference request is encoded once per shape, and sent with the caller's own tensors behind it. The
tensors of an answer are views of its body.
"""

import functools
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from . import protocol as pb
from . import wire
from .contract import Array
from .endpoint import Endpoint
from .errors import ClientError, ServerFailureError, explained
from .http_answer import TENSORS_BEGIN, Answer
from .terms import Terms

# Triton's own codes, and those of proxies: 429, 502 and 504.
STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
OK = 200

EXCERPT = 200
"""How many bytes of an answer that is not Triton's an error shows."""


class _Head(NamedTuple):
    """`inputs` is the JSON of the inputs, `size` the bytes of their tensors, `plain` the request without options."""

    inputs: str
    size: int
    plain: bytes


class Requests:
    """The requests about one model to one server; `config` is the one for its configuration."""

    def __init__(self, endpoint: Endpoint, model: str, version: str) -> None:
        path = f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")
        host, _, _ = (endpoint.name or endpoint.host).strip("[]").partition("%")
        address = f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"
        headers = "".join(f"{name}: {value}\r\n" for name, value in (("Host", address), *endpoint.headers))
        self.config = f"GET {path}/config HTTP/1.1\r\n{headers}\r\n".encode()
        self._begin = f"POST {path}/infer HTTP/1.1\r\n{headers}"
        self._heads: dict[object, _Head] = {}

    def infer(
        self, arrays: Mapping[str, Array], tensors: Sequence[memoryview], terms: Terms, server_timeout_us: int
    ) -> bytes:
        """The inference request up to its tensors."""
        key = tuple(
            [(name, array.shape, len(tensor)) for (name, array), tensor in zip(arrays.items(), tensors, strict=True)]
        )
        head = self._heads.get(key) or self._add(key, arrays, tensors)
        if not (terms.request_id or terms.priority or server_timeout_us or terms.parameters):
            return head.plain
        parameters: dict[str, Any] = {"priority": int(terms.priority)} if terms.priority else {}
        if server_timeout_us:
            parameters["timeout"] = server_timeout_us
        return self._whole(head.inputs, head.size, parameters | dict(terms.parameters or {}), terms.request_id)

    def _add(self, key: object, arrays: Mapping[str, Array], tensors: Sequence[memoryview]) -> _Head:
        inputs = json.dumps(
            [
                {
                    "name": name,
                    "datatype": wire.datatype(array),
                    "shape": array.shape,
                    "parameters": {"binary_data_size": len(tensor)},
                }
                for (name, array), tensor in zip(arrays.items(), tensors, strict=True)
            ]
        )
        size = sum(map(len, tensors))
        if len(self._heads) >= wire.HEADS:
            self._heads.clear()
        # The value is not read from the dict again: another thread may clear that.
        head = self._heads[key] = _Head(inputs, size, self._whole(inputs, size, {}, ""))
        return head

    def _whole(self, inputs: str, size: int, parameters: Mapping[str, Any], request_id: str) -> bytes:
        fields: dict[str, Any] = {"id": request_id} if request_id else {}
        fields["parameters"] = {**parameters, "binary_data_output": True}
        content = f'{json.dumps(fields)[:-1]}, "inputs": {inputs}}}'.encode()
        lengths = f"{TENSORS_BEGIN}: {len(content)}\r\nContent-Length: {len(content) + size}\r\n\r\n"
        return f"{self._begin}{lengths}".encode() + content


def read(answer: Answer, method: str, url: str, model: str) -> Any:
    """The outputs by name, or a ModelConfigResponse for the method "ModelConfig".

    Raises a `ClientError` for another status, or for what Triton does not send.
    """
    if (status := answer.head.status) != OK:
        raise _refused(status, answer.body(), url, model)
    try:
        return _config(answer.body()) if method == "ModelConfig" else _outputs(answer)
    except ClientError:
        raise
    except Exception as error:  # json, protobuf and our own checks raise many kinds of error
        body = answer.body(0, EXCERPT)
        raise ServerFailureError(
            f"{url}: what answered for '{model}' is not what Triton sends ({type(error).__name__}: {error}): "
            f"{body!r}. Give the address of Triton's own HTTP port, or look at the proxy in between.",
            status="UNKNOWN",
            text=body.decode(errors="replace"),
            model=model,
            url=url,
        ) from error


def _config(body: bytes) -> Any:
    """A ModelConfigResponse."""
    from google.protobuf import json_format  # its import takes longer than that of this package

    response = pb.ModelConfigResponse()
    # A newer server may have settings that tritonclient does not know.
    json_format.ParseDict(json.loads(body), response.config, ignore_unknown_fields=True)
    if not response.config.name:
        raise ValueError("a configuration without a name")
    return response


class _Output(NamedTuple):
    """One output in an answer's JSON; `begin` and `end` are the place of its bytes behind the JSON.

    `dtype` is numpy's if shape and bytes fit it, None for strings and for what does not fit.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    dtype: np.dtype[Any] | None


def _outputs(answer: Answer) -> dict[str, Array]:
    """The outputs, as views of the body if they are aligned in it; raises `ValueError` if the sizes differ."""
    whole, known = answer.whole, answer.known
    if known and answer.head is known[0] and type(whole) is bytearray and whole.startswith(known[1], answer.begin):
        _, content, layout = known  # the same head has the same lengths
    else:
        content, layout = _described(answer)
        answer.known = None if answer.head.length is None else (answer.head, content, layout)
    tensors_begin = answer.begin + len(content)
    outputs: dict[str, Array] = {}
    for name, datatype, shape, begin, end, dtype in layout:
        if dtype is None:
            content = bytes(whole[tensors_begin + begin : tensors_begin + end])
            outputs[name] = wire.tensor(content, datatype, shape, whole=True)
        else:
            array: Array = np.ndarray(shape, dtype, whole, tensors_begin + begin)
            outputs[name] = array if array.flags.aligned else array.copy()
    return outputs


def _described(answer: Answer) -> tuple[bytes, tuple[_Output, ...]]:
    """The JSON of an answer, and the outputs that it names; raises `ValueError` if the sizes differ."""
    size = len(answer.whole) - answer.begin
    json_length = size if answer.head.json_length is None else int(answer.head.json_length)
    if not 0 <= json_length <= size:
        raise ValueError(f"{TENSORS_BEGIN}: {json_length}, in an answer of {size} bytes")
    content = answer.body(0, json_length)
    layout = _layout(content)
    if (named := layout[-1].end if layout else 0) != size - json_length:
        raise ValueError(f"outputs of {named} bytes, and {size - json_length} bytes behind the JSON")
    return content, layout


@functools.lru_cache(wire.HEADS)
def _layout(content: bytes) -> tuple[_Output, ...]:
    """The outputs that an answer's JSON names; all answers of the same shapes have the same."""
    head, outputs, begin = json.loads(content), list[_Output](), 0
    _checked_text(head["model_name"])
    for output in head.get("outputs", ()):
        name, datatype = _checked_text(output["name"]), _checked_text(output["datatype"])
        shape = tuple(map(operator.index, output["shape"]))
        if (size := operator.index(output["parameters"]["binary_data_size"])) < 0:
            raise ValueError(f'output "{name}" has {size} bytes')
        dtype = wire.DTYPES.get(datatype)
        if dtype is not None and (
            dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size
        ):
            dtype = None
        outputs.append(_Output(name, datatype, shape, begin, begin + size, dtype))
        begin += size
    return tuple(outputs)


def _checked_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} in the place of a name")
    return value


def _refused(status: int, body: bytes, url: str, model: str) -> ClientError:
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body[:EXCERPT].decode(errors="replace") or f"HTTP status {status}"
    return explained(STATUS.get(status, "INTERNAL"), text, url, model, http=True)
