"""A server of gRPC by grpcio, whose answers a test gives."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

METADATA = pb.ModelConfigResponse(
    config={
        "name": "m",
        "max_batch_size": 1 << 20,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
)


def outputs(*named: tuple[str, Any], datatype: str = "FP32") -> Any:
    """An answer with these arrays."""
    described = [{"name": name, "datatype": datatype, "shape": array.shape} for name, array in named]
    return pb.ModelInferResponse(outputs=described, raw_output_contents=[array.tobytes() for _, array in named])


def double(request: Any) -> Any:
    """Twice the request."""
    rows = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(tuple(request.inputs[0].shape))
    return outputs(("y", 2 * rows))


def part(value: float | None, *, final: bool = False, error: str = "") -> Any:
    """One answer of a stream; without a value it has no outputs."""
    response = pb.ModelInferResponse() if value is None else outputs(("y", np.full((1, 1), value, np.float32)))
    response.parameters["triton_final_response"].bool_param = final
    return pb.ModelStreamInferResponse(error_message=error, infer_response=None if error else response)


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`infer` answers requests, `stream` gives the answers of streams; `asked` are the other methods, in order.

    `refused` has a status and a text by method. `cancelled` counts the calls that clients have cancelled. While it is
    `silent`, inference calls end with OK and no message.
    """

    def __init__(self) -> None:
        self.infer: Callable[[Any], Any] = double
        self.stream: Callable[[Any], Iterator[Any]] = lambda _: iter([part(1), part(None, final=True)])
        self.version, self.config, self.url = "2.51.0", METADATA, ""
        self.refused: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.asked: list[str] = []
        self.cancelled, self.silent = 0, False
        self.over = threading.Event()

    def service(self, details: Any) -> Any:
        """Called by grpcio for each call."""
        method = details.method.rpartition("/")[2]
        self.asked.append(method)
        request = getattr(pb, f"{method}Request", pb.ModelInferRequest)
        encode = {"response_serializer": lambda message: message.SerializeToString()}
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream, pb.ModelInferRequest.FromString, **encode)
        if self.silent and method == "ModelInfer":
            return grpc.unary_stream_rpc_method_handler(lambda *_: iter(()), request.FromString, **encode)
        answers = {"ServerMetadata": lambda _: pb.ServerMetadataResponse(version=self.version)}
        answers |= {"ModelConfig": lambda _: self.config, "ModelInfer": lambda asked: self.infer(asked)}
        for about in ("Status", "Register", "Unregister"):
            name = f"SystemSharedMemory{about}"
            answers[name] = lambda _, name=name: getattr(pb, f"{name}Response")()  # type: ignore[misc]

        def answer(asked: Any, context: Any) -> Any:
            context.add_callback(lambda: self._ended(context))
            if refused := self.refused.get(method):
                context.abort(*refused)
            return answers[method](asked)

        return grpc.unary_unary_rpc_method_handler(answer, request.FromString, **encode)

    def _ended(self, context: Any) -> None:
        self.cancelled += context.code() is None and not context.is_active() and not context.done

    def _stream(self, asked: Iterator[Any], _: Any) -> Iterator[Any]:
        yield from self.stream(next(asked))


@contextlib.contextmanager
def grpc_server() -> Iterator[GrpcServer]:
    """A server on a free port of loopback until the end; `over` is set then."""
    running = GrpcServer()
    server = grpc.server(ThreadPoolExecutor(80), handlers=[running], options=[("grpc.max_send_message_length", -1)])
    running.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield running
    running.over.set()
    server.stop(0).wait()
