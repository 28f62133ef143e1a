"""The clients against recorded answers of servers that were not run (tests/helpers/newer_answers.py)."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from h2_server import H2Server, Peer, double, h2_server
from newer_answers import DYNAMO_CONFIG, MEMORY_REFUSED, METADATA

from clients import Model, TransportError, regions
from clients import protocol as pb

HEAVY = np.arange(1 << 19, dtype=np.float32)[:, None]
"""2 MiB, which `auto` sends through shared memory where it can."""


class Newer:
    """What a newer server answers beside its version and the configuration; `asked` are the methods in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, peer: Peer, stream: int, body: bytes) -> None:
        method = peer.methods[stream]
        self.asked.append(method)
        if method == "ModelInfer":
            double(peer, stream, body)
        elif method == "SystemSharedMemoryStatus":
            peer.answer(stream, b"")
        else:
            peer.refuse(stream, *MEMORY_REFUSED)


@pytest.fixture
def newer() -> Newer:
    return Newer()


@pytest.fixture
def server(newer: Newer) -> Iterator[H2Server]:
    with h2_server() as running:
        running.version, running.on_infer = str(METADATA["version"]), newer.answer
        yield running


def test_the_words_of_a_server_that_refuses_shared_memory_are_told(server: H2Server) -> None:
    with pytest.raises(TransportError) as caught, Model("m", url=server.url, transport="shared_memory"):
        pass
    assert str(caught.value).endswith(f'Use transport="auto". It said: {MEMORY_REFUSED[1]}')


def test_tensors_travel_in_messages_where_shared_memory_is_refused(server: H2Server, newer: Newer) -> None:
    with Model("m", url=server.url) as model:
        for _ in range(2):
            assert np.array_equal(model.predict(HEAVY), 2 * HEAVY)
    # It is asked once, and no file is left.
    assert newer.asked == ["SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "ModelInfer", "ModelInfer"]
    assert not list(Path("/dev/shm").glob(f"{regions.PREFIX}*_{os.getpid()}_*"))


def test_the_batch_axis_is_not_taken_from_the_metadata(server: H2Server, newer: Newer) -> None:
    """dynamo.triton dropped it there; the clients read the configuration, and never ask for the metadata."""
    shapes: list[list[int]] = []

    def embed(peer: Peer, stream: int, body: bytes) -> None:
        newer.asked.append(peer.methods[stream])
        shapes.append(list(pb.ModelInferRequest.FromString(body).inputs[0].shape))
        output = {"name": "text_embeddings", "datatype": "FP32", "shape": [4, 2]}
        rows = np.zeros((4, 2), np.float32).tobytes()
        peer.answer(stream, pb.ModelInferResponse(outputs=[output], raw_output_contents=[rows]).SerializeToString())

    server.config, server.on_infer = DYNAMO_CONFIG, embed
    with Model("clip", url=server.url, transport="grpc") as model:
        assert model.metadata.inputs[0].shape == (-1, -1)
        assert model.predict(np.array([["a"], ["b"], ["c"], ["d"]])).shape == (4, 2)
    assert shapes == [[4, 1]]
    assert newer.asked == ["ModelInfer"]
