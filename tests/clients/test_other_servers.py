"""Servers of KServe v2 that are not Triton, by what MLServer 1.7.1 answered when it was asked the same."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from clients import AsyncModel, InvalidInputError, Model, NotReadyError

GET = {
    "/v2": (200, '{"name":"mlserver","version":"1.7.1","extensions":[]}'),
    "/v2/models/m": (
        200,
        '{"name":"m","versions":[],"platform":"","inputs":[{"name":"x","datatype":"FP32","shape":[-1,3]},{"name":"t",'
        '"datatype":"BYTES","shape":[-1]}],"outputs":[{"name":"y","datatype":"FP32","shape":[-1,3]},{"name":"u",'
        '"datatype":"BYTES","shape":[-1,1]}],"parameters":{}}',
    ),
    "/v2/models/m/config": (404, '{"detail":"Not Found"}'),
    "/v2/models/absent": (404, '{"error":"Model absent not found"}'),
    "/v2/models/absent/config": (404, '{"detail":"Not Found"}'),
}
ASKED = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["ab"]},
    ]
}
ANSWER = (
    '{"model_name":"m","id":"6ff15e82-9cc0-4773-a7bb-c01b8cccd927","parameters":{},"outputs":[{"name":"y","shape":[2,3],'
    '"datatype":"FP32","parameters":{"content_type":"np"},"data":[2.0,4.0,6.0,8.0,10.0,12.0]},{"name":"u","shape":[1,1],'
    '"datatype":"BYTES","parameters":{"content_type":"str"},"data":["abab"]}]}'
)
REFUSED = '{"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary"}]}'
X, T = np.arange(1, 7, dtype=np.float32).reshape(2, 3), np.array(["ab"])


class MlServer(BaseHTTPRequestHandler):
    """Answers as it did: 422 for another request than the one that was recorded."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(*GET[self.path])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = asked == ASKED and self.headers["Content-Type"] == "application/json"
        self.reply(*((200, ANSWER) if is_known else (422, REFUSED)))

    def reply(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), MlServer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_server_without_configurations_is_called_by_its_metadata(url: str, kind: str) -> None:
    async def call() -> Any:
        async with AsyncModel("m", url=url) as model:
            return await model.predict(X, T)

    if kind == "async":
        y, u = asyncio.run(call())
    else:
        with Model("m", url=url) as model:
            assert model.metadata.max_batch_size == 0
            y, u = model.predict(X, T)
    np.testing.assert_array_equal(y, 2 * X)
    assert u.tolist() == [[b"abab"]]


def test_a_server_that_lists_no_extensions_gets_json(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("[]", '{"extensions": null}'):
        monkeypatch.setitem(GET, "/v2", (200, said))
        with Model("m", url=url) as model:
            assert model.predict(X, T)[1].tolist() == [[b"abab"]]


def test_its_errors_are_told_and_what_json_cannot_hold_is_not_sent(url: str) -> None:
    with pytest.raises(NotReadyError, match="Model absent not found"):
        Model("absent", url=url)
    with Model("m", url=url) as model:
        with pytest.raises(InvalidInputError, match="should be a valid dictionary"):
            model.predict(2 * X, T)
        with pytest.raises(InvalidInputError, match="NaN or infinity"):
            model.predict(X * np.nan, T)
        with pytest.raises(InvalidInputError, match="not UTF-8"):
            model.predict(X, np.array([b"\xff"], np.object_))
