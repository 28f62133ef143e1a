"""The bytes of a call over HTTP and of its answer: KServe v2 with binary tensors.

The head of an inference request is encoded once per shape, and sent with the caller's own tensors behind it. The
tensors of an answer are views of its body.
"""

import functools
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from ._address import Address
from ._contract import MOST_SHAPES, Inputs
from ._http_answer import JSON_LENGTH, HttpAnswer
from ._options import CallOptions
from ._steps import INFER, Step
from ._tensors import DATATYPES, DTYPES, Array, contents, from_json, tensor, to_json
from .errors import ClientError, explained, not_tritons

# Triton's own codes, and those of proxies: 429, 502 and 504.
STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
OK = 200

EXCERPT = 200
"""How many bytes of an answer that is not Triton's an error shows."""

Place = tuple[str, int, int]
"""The place of a tensor in shared memory: region, offset, bytes."""


class Places(NamedTuple):
    """Where the tensors of a request are in shared memory; None for an output that comes in the message."""

    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place | None]


Described = tuple[str, tuple[int, ...], "memoryview | None"]
"""Datatype, shape and bytes of an output; None for one that the server has written to shared memory."""


class _Head(NamedTuple):
    """`inputs` is the JSON of the inputs, `size` the bytes of their tensors, `plain` the request without options."""

    inputs: str
    size: int
    plain: bytes


class HttpFormat:
    """Requests about one model to one server. `is_binary` is whether the server takes and gives binary tensors."""

    protocol = "http"

    def __init__(self, address: Address, model: str, version: str) -> None:
        self._address, self._url, self._model, self.is_binary = address, address.url, model, True
        self._path = f"/v2/models/{quote(model, safe='')}"
        self._path += f"/versions/{quote(version, safe='')}" if version else ""
        host, _, _ = address.host.strip("[]").partition("%")
        host = f"[{host}]" if ":" in host else host
        self._headers = f"Host: {host}:{address.port}\r\n" + _lines(address.headers)

    def server(self, options: CallOptions) -> Step:
        """The step that asks for the server's extensions."""
        return self._get("/v2", "ServerMetadata", options)

    def configuration(self, options: CallOptions) -> Step:
        """The step that asks Triton for the model's configuration."""
        return self._get(f"{self._path}/config", "ModelConfig", options)

    def metadata(self, options: CallOptions) -> Step:
        """The step that asks any server of KServe v2 for the model's inputs and outputs."""
        return self._get(self._path, "ModelMetadata", options)

    def infer(self, inputs: Inputs, options: CallOptions, deadline: float | None, longest_s: float) -> Step:
        """The step that runs the model, with the tensors in the message."""
        arrays, shape = inputs
        tensors = list(map(contents, arrays.values())) if self.is_binary else []
        head = shape.head
        if type(head) is not _Head or not self.is_binary:
            described = [self._described(name, array) for name, array in arrays.items()]
            text, size = json.dumps(described), sum(map(len, tensors))
            head = shape.head = _Head(text, size, self._whole(text, size, {}, ""))
        message = head.plain
        if not options.adds_nothing(longest_s):
            message = self._whole(head.inputs, head.size, _parameters(options, longest_s), options.request_id)
        return Step("http", INFER, message, self._outputs, tensors, deadline, options, arrays)

    def infer_in_place(
        self, inputs: Inputs, places: Places, options: CallOptions, deadline: float | None, longest_s: float
    ) -> Step:
        """The step that runs the model on tensors in shared memory; its answer has a `Described` for each output."""
        described = [
            {
                "name": name,
                "datatype": DATATYPES[a.dtype],
                "shape": a.shape,
                "parameters": _reference(places.inputs[name]),
            }
            for name, a in inputs.arrays.items()
        ]
        wanted = [
            {"name": name, "parameters": _reference(place) if place else {"binary_data": True}}
            for name, place in places.outputs.items()
        ]
        parameters = _parameters(options, longest_s)
        message = self._whole(json.dumps(described), 0, parameters, options.request_id, json.dumps(wanted))
        return Step("http", INFER, message, self._places, (), deadline, options, inputs.arrays)

    def register(self, name: str, file: str, size: int, options: CallOptions, deadline: float | None) -> Step:
        """The step that lets the server map a file of /dev/shm."""
        content = json.dumps({"key": f"/{file}", "offset": 0, "byte_size": size}).encode()
        return self._about_memory("POST", f"region/{name}/register", content, options, deadline)

    def unregister(self, name: str, options: CallOptions, deadline: float | None) -> Step:
        """The step that lets the server forget a region."""
        return self._about_memory("POST", f"region/{name}/unregister", b"", options, deadline)

    def registered(self, options: CallOptions, deadline: float | None) -> Step:
        """The step that asks for the names of all regions."""
        step = self._about_memory("GET", "status", b"", options, deadline)
        return step._replace(read=lambda answer: [region["name"] for region in self._json(answer)])

    def _about_memory(self, verb: str, path: str, content: bytes, options: CallOptions, deadline: float | None) -> Step:
        headers = self._headers + _lines(self._address.secret().items())
        head = f"{verb} /v2/systemsharedmemory/{path} HTTP/1.1\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        return Step("http", "SharedMemory", head.encode() + content, self._json, (), deadline, options)

    def _get(self, path: str, method: str, options: CallOptions) -> Step:
        head = f"GET {path} HTTP/1.1\r\n{self._headers}\r\n".encode()
        return Step("http", method, head, self._json, options=options)

    def _described(self, name: str, array: Array) -> dict[str, Any]:
        described = {"name": name, "datatype": DATATYPES[array.dtype], "shape": array.shape}
        if self.is_binary:
            return described | {"parameters": {"binary_data_size": len(contents(array))}}
        return described | {"data": to_json(array)}

    def _whole(
        self, inputs: str, size: int, parameters: Mapping[str, Any], request_id: str, outputs: str = ""
    ) -> bytes:
        """A request up to its tensors."""
        fields: dict[str, Any] = {"id": request_id} if request_id else {}
        if self.is_binary and not outputs:
            parameters = {**parameters, "binary_data_output": True}
        fields |= {"parameters": parameters} if parameters else {}
        listed = f'"inputs": {inputs}' + (f', "outputs": {outputs}' if outputs else "")
        content = f"{json.dumps(fields)[:-1]}{', ' if fields else ''}{listed}}}".encode()
        lengths = f"Content-Length: {len(content) + size}\r\n\r\n"
        if self.is_binary:
            lengths = f"{JSON_LENGTH}: {len(content)}\r\n{lengths}"
        else:
            lengths = f"Content-Type: application/json\r\n{lengths}"
        return f"POST {self._path}/infer HTTP/1.1\r\n{self._headers}{lengths}".encode() + content

    def _json(self, answer: HttpAnswer) -> Any:
        """What an answer without tensors says."""
        return self._read(answer, _json)

    def _outputs(self, answer: HttpAnswer) -> dict[str, Array]:
        """The outputs by name."""
        known, whole = answer.known, answer.whole
        if known and answer.head is known[0] and type(whole) is bytearray and whole.startswith(known[1], answer.begin):
            return _views(whole, answer.begin + len(known[1]), known[2])  # the same head has the same lengths
        return self._read(answer, _arrays)  # type: ignore[no-any-return]

    def _places(self, answer: HttpAnswer) -> dict[str, Described]:
        return self._read(answer, _places)  # type: ignore[no-any-return]

    def _read(self, answer: HttpAnswer, read: Callable[[HttpAnswer], Any]) -> Any:
        """What `read` makes of an answer; raises a `ClientError` for another status or what Triton does not send."""
        if (status := answer.head.status) != OK:
            raise self._refused(status, answer.body())
        try:
            return read(answer)
        except ClientError:
            raise
        except Exception as error:  # json and our own checks raise many kinds of error
            what = f"{type(error).__name__}: {error}"
            raise not_tritons(what, answer.body(0, EXCERPT), self._url, self._model) from error

    def _refused(self, status: int, body: bytes) -> ClientError:
        try:
            text = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            text = body[:EXCERPT].decode(errors="replace") or f"HTTP status {status}"
        return explained(STATUS.get(status, "INTERNAL"), text, self._url, self._model, http=True)


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


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers)


def _parameters(options: CallOptions, longest_s: float) -> dict[str, Any]:
    """The parameters that the options add to a request."""
    parameters: dict[str, Any] = {"priority": int(options.priority)} if options.priority else {}
    if options.timeout_s and (limit_us := options.server_timeout_us(longest_s)):
        parameters["timeout"] = limit_us
    return parameters | dict(options.parameters or {})


def _reference(place: Place) -> dict[str, Any]:
    """The parameters that name the place of a tensor in shared memory."""
    region, offset, size = place
    named = {"shared_memory_region": region, "shared_memory_byte_size": size}
    return named | ({"shared_memory_offset": offset} if offset else {})


def _json(answer: HttpAnswer) -> Any:
    return json.loads(answer.body() or b"null")


def _arrays(answer: HttpAnswer) -> dict[str, Array]:
    """The outputs; raises `ValueError` if the sizes differ. `answer.known` then recognises the next one like it."""
    if answer.head.json_length is None:
        listed = json.loads(answer.body())["outputs"]
        named = {each["name"]: from_json(each["data"], each["datatype"], each["shape"]) for each in listed}
        if len(named) < len(listed):
            raise ValueError("an output came twice")
        return named
    size, json_length = len(answer.whole) - answer.begin, int(answer.head.json_length)
    if not 0 <= json_length <= size:
        raise ValueError(f"{JSON_LENGTH}: {json_length}, in an answer of {size} bytes")
    content = answer.body(0, json_length)
    layout = _layout(content)
    if (named_bytes := layout[-1].end if layout else 0) != size - json_length:
        raise ValueError(f"outputs of {named_bytes} bytes, and {size - json_length} bytes behind the JSON")
    is_small = type(answer.whole) is bytearray and answer.head.length is not None
    answer.known = (answer.head, content, layout) if is_small else None
    return _views(answer.whole, answer.begin + json_length, layout)


def _views(whole: Any, begin: int, layout: tuple[_Output, ...]) -> dict[str, Array]:
    """The outputs in a body whose tensors begin there, as views of it if they are aligned."""
    outputs: dict[str, Array] = {}
    for name, datatype, shape, first, end, dtype in layout:
        if dtype is None:
            outputs[name] = tensor(bytes(whole[begin + first : begin + end]), datatype, shape)
        else:
            array: Array = np.ndarray(shape, dtype, whole, begin + first)
            outputs[name] = array if array.flags.aligned else array.copy()
    return outputs


def _places(answer: HttpAnswer) -> dict[str, Described]:
    """The outputs of an answer of which the server has written some to shared memory."""
    json_length = answer.head.json_length
    listed = json.loads(answer.body(0, None if json_length is None else int(json_length)))["outputs"]
    begin = 0 if json_length is None else int(json_length)
    found: dict[str, Described] = {}
    for each in listed:
        size = each.get("parameters", {}).get("binary_data_size")
        content = None if size is None else memoryview(answer.body(begin, begin + size))
        begin += size or 0
        if each["name"] in found:
            raise ValueError(f"output {each['name']} came twice")
        found[each["name"]] = (each["datatype"], tuple(each["shape"]), content)
    return found


@functools.lru_cache(MOST_SHAPES)
def _layout(content: bytes) -> tuple[_Output, ...]:
    """The outputs that an answer's JSON names; all answers of the same shapes have the same."""
    head, outputs, begin = json.loads(content), list[_Output](), 0
    _checked_text(head["model_name"])
    for output in head.get("outputs", ()):
        name, datatype = _checked_text(output["name"]), _checked_text(output["datatype"])
        shape = tuple(map(operator.index, output["shape"]))
        if (size := operator.index(output["parameters"]["binary_data_size"])) < 0:
            raise ValueError(f'output "{name}" has {size} bytes')
        if any(name == other.name for other in outputs):
            raise ValueError(f'output "{name}" came twice')
        dtype = DTYPES.get(datatype)
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
