"""Calls to mosec that the client merges, by the rules by which `AsyncModel(coalesce=True)` merges calls to ours."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from clients.coalesce import Coalescer, Outputs
from clients.contract import Array, Metadata, Tensor
from clients.terms import Terms
from perf.studies.peers.raw_http import Connection, post

NO_TERMS = Terms()


class MergedCalls:
    """One-row calls of one process, sent as requests of up to `most_rows` rows to the mosec server at `url`."""

    def __init__(self, url: str, row: tuple[int, ...], answer: tuple[int, ...], most_rows: int) -> None:
        self._url, self._answer = url, answer
        self._idle: list[Connection] = []
        self._coalescer = Coalescer(_metadata(row, answer, most_rows), self._send)

    async def call(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """The answer to one row, which has no batch axis."""
        outputs = await self._coalescer.infer({"row": row[None]}, NO_TERMS)
        answer: NDArray[np.float32] = outputs["answer"][0]
        return answer

    def close(self) -> None:
        """Close the connections; calls that have no answer fail."""
        self._coalescer.close()
        for connection in self._idle:
            connection.close()

    async def _send(self, arrays: Mapping[str, Array], terms: Terms) -> Outputs:
        host, _, port = self._url.rpartition(":")
        connection = self._idle.pop() if self._idle else await Connection.open(host, int(port))
        request = post("/inference", self._url, "application/octet-stream", arrays["row"].tobytes())
        values = np.frombuffer(await connection.ask(request), dtype=np.float32)
        self._idle.append(connection)
        return {"answer": values.reshape(-1, *self._answer)}


def _metadata(row: tuple[int, ...], answer: tuple[int, ...], most_rows: int) -> Metadata:
    """What the merging asks of a model: one worker, and at most `most_rows` rows in a request."""

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor(name=name, datatype="FP32", dtype=np.dtype(np.float32), shape=(-1, *shape))

    return Metadata(
        name="ranker",
        inputs=(tensor("row", row),),
        outputs=(tensor("answer", answer),),
        max_batch_size=most_rows,
        instances=1,
        longest_server_deadline_s=0.0,
        sequences=False,
    )
