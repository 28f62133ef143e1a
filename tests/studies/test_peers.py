"""The comparison with other servers: its callers against a real server, its arithmetic, its records."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from perf.studies.peers import contenders, point
from perf.studies.peers.__main__ import main
from perf.studies.peers.callers import TOLERANCE, Call, CallerCounts, Rows, loop, run
from perf.studies.peers.contenders import PeerLimits
from perf.studies.peers.point import LABELS, PeerRound, Turn
from perf.studies.peers.raw_http import Connection, post
from serve.launcher import Server
from triton_batching.machine import Machine
from triton_batching.terminal import Mistake

MACHINE = Machine(cpu="c", cores=2, memory_bytes=1, system="s", gpu=None)


def seen(calls: int, wall_s: float = 2.0) -> CallerCounts:
    return CallerCounts(callers=64, calls=calls, wrong=0, wall_s=wall_s, cpu_s=0.1, p50_ms=1.0, p99_ms=2.0)


def round_of(contender: str = "http", number: int = 1, **changes: object) -> PeerRound:
    turns = (
        Turn(seen=seen(1000), ceiling_before=500.0, ceiling_after=700.0),
        Turn(seen=seen(300, 1.0), ceiling_before=400.0, ceiling_after=400.0),
    )
    built = PeerRound(
        contender=contender,
        round=number,
        limits=PeerLimits(),
        turns=turns,
        machine=MACHINE,
        versions={},
        started_at="",
        command=(),
    )
    return dataclasses.replace(built, **changes)  # type: ignore[arg-type]


def test_a_share_is_over_what_onnxruntime_does_in_the_same_time() -> None:
    # 2 s at 600 rows/s and 1 s at 400 would have been 1600 rows.
    assert round_of().share == pytest.approx(1300 / 1600)
    assert round_of().rows_per_s == pytest.approx(1300 / 3)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    point.write(round_of(), tmp_path)
    point.write(round_of("mosec", 2), tmp_path)
    assert list(point.read(tmp_path)) == [round_of(), round_of("mosec", 2)]
    table = point.table(list(point.read(tmp_path)))
    assert list(table.columns[0].cells) == ["mosec", "ours, HTTP"]
    assert list(table.columns[3].cells) == ["", ">= 0.85 NO"]


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "ranker.http.r1.json").write_text('{"format": 1, "kind": "other"}')
    with pytest.raises(Mistake, match=r"ranker\.http\.r1\.json: not a record"):
        list(point.read(tmp_path))


def faster(contender: str, number: int = 1) -> PeerRound:
    """All that onnxruntime alone would have done."""
    return round_of(contender, number, turns=(Turn(seen=seen(1000), ceiling_before=500.0, ceiling_after=500.0),))


def test_the_median_of_a_gated_server_has_to_reach_its_gate() -> None:
    # A share of 0.8125 is below both gates, and mosec has none.
    assert point.passed([faster("http"), faster("coalesced"), round_of("mosec")])
    assert point.passed([faster("http"), round_of("http", 2), faster("http", 3)])
    assert not point.passed([faster("http"), round_of("coalesced")])
    assert not point.passed([round_of("http"), faster("http", 2), round_of("http", 3)])


@pytest.mark.parametrize(("ours", "code"), [(faster, 0), (round_of, 1)])
def test_rounds_that_are_there_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: Callable[[str], PeerRound], code: int
) -> None:
    for name in LABELS:
        point.write(ours(name), tmp_path)
    assert main(["--rounds", "1", "--results", str(tmp_path), "--queue-delay-us", "100000"]) == code
    assert "mosec" in capsys.readouterr().out


@pytest.mark.parametrize("peer", ["mosec", "litserve"])
def test_every_package_of_a_peer_is_pinned_and_none_is_torch(peer: str) -> None:
    pins = [line.split("==") for line in (contenders.HERE / f"{peer}.txt").read_text().split()]
    assert all(len(pin) == 2 for pin in pins)
    names = {name for name, _ in pins}
    assert {peer, "onnxruntime", "numpy"} <= names
    assert not any(name.startswith(("torch", "nvidia")) for name in names)


@contextlib.asynccontextmanager
async def answering(answers: list[bytes]) -> AsyncIterator[int]:
    """A server that sends each of `answers`, whatever it is asked; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            for part in (answer[:9], answer[9:]):  # in two pieces, as a socket may
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_http_answers_are_read_whole() -> None:
    async def replies() -> list[bytes]:
        good = b"HTTP/1.1 200 OK\r\nX-Header-Content-Length: 1\r\ncontent-length: 5\r\n\r\nhello"
        bad = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate"
        async with answering([good, good, bad]) as port:
            connection = await Connection.open("127.0.0.1", port)
            request = post("/x", "127.0.0.1", "text/plain", b"", "X-Added: 1")
            answers = [await connection.ask(request), await connection.ask(request)]
            with pytest.raises(ConnectionError, match=r"503 busy: b'late'"):
                await connection.ask(request)
            with pytest.raises(ConnectionError, match="closed the connection"):
                await connection.ask(request)
            connection.close()
            return answers

    assert asyncio.run(replies()) == [b"hello", b"hello"]


def test_a_reply_to_another_row_is_counted_as_wrong() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)

    calls_by_caller = [0, 0]

    def caller(number: int) -> Call:
        async def call() -> Rows:
            calls_by_caller[number] += 1
            await asyncio.sleep(0.01)
            answer: Rows = expected[0] + np.float32(TOLERANCE / 2)
            return answer

        return call

    turn = asyncio.run(loop([caller(0), caller(1)], expected, 0.3, 0.1))
    # The answer is right for the first caller's row, whenever it calls, and never for the second's.
    assert (turn.callers, turn.wrong) == (2, calls_by_caller[1])
    assert 0 < turn.calls < sum(calls_by_caller)
    assert 0 < turn.wall_s <= 0.3
    assert turn.p50_ms >= 9


@pytest.mark.server
@pytest.mark.parametrize("kind", ["http", "grpc", "coalesced"])
def test_our_callers_get_their_own_answers(kind: str, server: Server, ranker: Path) -> None:
    rows = np.random.default_rng(4).standard_normal((16, 2, 256)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(ranker))
    expected = session.run(None, {"features": rows})[0]

    async def measured() -> CallerCounts:
        async with contextlib.AsyncExitStack() as stack:
            url = server.http_url if kind == "http" else server.grpc_url
            return await loop(await run(kind, url, rows, stack), expected, 0.6, 0.2)

    calls = asyncio.run(measured())
    assert calls.wrong == 0
    assert calls.calls >= 16
