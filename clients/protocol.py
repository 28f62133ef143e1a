"""The messages of the KServe v2 protocol.

They come from tritonclient, whose import takes longer than that of this whole package. So it is imported when the first
message is used, and `from . import protocol as pb` costs nothing.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from tritonclient.grpc import model_config_pb2, service_pb2

    message = getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    globals()[name] = message
    return message
