"""A server of gRPC on the h2 library, an implementation of HTTP/2 of its own, whose answers a test gives."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes

from clients import protocol as pb

CONFIG = pb.ModelConfig(
    name="m",
    max_batch_size=1 << 20,
    input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    output=[{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
)
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def message(value: float | None, *, final: bool = False, error: str = "", width: int = 1) -> bytes:
    """One message of a stream of answers with its prefix; without a value it has no outputs."""
    if value is None:
        response = pb.ModelInferResponse()
    else:
        output = {"name": "y", "datatype": "FP32", "shape": [width, 1]}
        content = np.full((width, 1), value, np.float32).tobytes()
        response = pb.ModelInferResponse(outputs=[output], raw_output_contents=[content])
    response.parameters["triton_final_response"].bool_param = final
    answer = pb.ModelStreamInferResponse(error_message=error, infer_response=None if error else response)
    encoded = answer.SerializeToString()
    return b"\0" + len(encoded).to_bytes(4) + bytes(encoded)


@dataclass
class Peer:
    """One connection; `lock` guards it."""

    client: socket.socket
    h2: H2Connection
    server: "H2Server"
    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    methods: dict[int, str] = field(default_factory=dict)
    bodies: dict[int, bytearray] = field(default_factory=dict)
    resets: list[int] = field(default_factory=list)
    is_leaving: bool = False

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.client.sendall(self.h2.data_to_send())

    def answer(self, stream: int, content: bytes, *, padding: int | None = None, piece: int = 1 << 14) -> None:
        """Send a whole answer."""
        with self.lock:
            self.h2.send_headers(stream, HEAD)
            framed = b"\0" + len(content).to_bytes(4) + content
            for begin in range(0, len(framed), piece):
                self.h2.send_data(stream, framed[begin : begin + piece], pad_length=padding)
            self.h2.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            self.flush()

    def refuse(self, stream: int, status: int, message: str) -> None:
        """Send a status without an answer."""
        with self.lock:
            self.h2.send_headers(stream, [*HEAD, ("grpc-status", f"{status}"), ("grpc-message", message)], True)
            self.flush()

    def serve(self) -> None:
        """Handle what the client sends until the end of the connection."""
        self.h2.initiate_connection()
        self.flush()
        with contextlib.suppress(OSError):
            while received := self.client.recv(1 << 16):
                with self.lock:
                    for event in self.h2.receive_data(received):
                        self.handle(event)
                    self.flush()

    def handle(self, event: object) -> None:
        if isinstance(event, RequestReceived):
            self.methods[event.stream_id] = dict(event.headers)[b":path"].decode().rpartition("/")[2]
            self.bodies[event.stream_id] = bytearray()
        elif isinstance(event, DataReceived):
            self.bodies[event.stream_id] += event.data
            if event.flow_controlled_length and not self.server.holds_windows:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if self.methods[event.stream_id] in ("ModelInfer", "ModelStreamInfer") and self.server.on_data:
                self.server.on_data(self, event.stream_id)
        elif isinstance(event, StreamReset):
            self.resets.append(event.stream_id)
        elif isinstance(event, StreamEnded):
            self.request(event.stream_id)

    def request(self, stream: int) -> None:
        body, method = bytes(self.bodies[stream][5:]), self.methods[stream]
        if method == "ServerMetadata":
            self.answer(stream, pb.ServerMetadataResponse(version=self.server.version).SerializeToString())
        elif method == "ModelConfig":
            self.answer(stream, pb.ModelConfigResponse(config=self.server.config).SerializeToString())
        else:
            self.server.count(1)
            self.server.on_infer(self, stream, body)


def doubled(body: bytes) -> bytes:
    """The answer that is twice the request."""
    request = pb.ModelInferRequest.FromString(body)
    y = 2 * np.frombuffer(request.raw_input_contents[0], np.float32)
    output = {"name": "y", "datatype": "FP32", "shape": request.inputs[0].shape}
    return bytes(pb.ModelInferResponse(outputs=[output], raw_output_contents=[y.tobytes()]).SerializeToString())


def double(peer: Peer, stream: int, body: bytes) -> None:
    """Answer with twice the request."""
    peer.answer(stream, doubled(body))


class H2Server:
    """`on_infer` answers inference requests, of which `infers` came whole; `settings` are those of connections."""

    def __init__(self) -> None:
        self.on_infer: Callable[[Peer, int, bytes], None] = double
        self.on_data: Callable[[Peer, int], None] | None = None
        self.settings: dict[SettingCodes | int, int] = {}
        self.version, self.infers, self.holds_windows = "2.51.0", 0, False
        self.config = CONFIG
        self._counting = threading.Lock()
        self.peers: list[Peer] = []
        self.tls: ssl.SSLContext | None = None
        self.url = ""

    def count(self, more: int) -> None:
        """Change the number of requests; connections have threads of their own."""
        with self._counting:
            self.infers += more

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if self.tls:
                    client = self.tls.wrap_socket(client, server_side=True)
                h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
                h2.local_settings.update(self.settings)
                h2.local_settings.acknowledge()
                h2.max_inbound_frame_size = h2.local_settings.max_frame_size
                self.peers.append(peer := Peer(client, h2, self, len(self.peers)))
                threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: Peer) -> None:
        with contextlib.closing(peer.client):
            peer.serve()


@contextlib.contextmanager
def h2_server() -> Iterator[H2Server]:
    """A server on a port of its own."""
    server = H2Server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=server.accept, args=(listener,), daemon=True).start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        for peer in server.peers:
            with contextlib.suppress(OSError):
                peer.client.shutdown(socket.SHUT_RDWR)
