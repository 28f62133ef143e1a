"""The comparison with other servers: its callers against a real server, its arithmetic, its records."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from perf.stats import rounds
from perf.studies.peers import contenders, point, table
from perf.studies.peers.__main__ import main
from perf.studies.peers.callers import TOLERANCE, Call, CallerCounts, Rows, loop, run
from perf.studies.peers.contenders import PeerLimits
from perf.studies.peers.point import PeerRound, Turn
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


def test_the_cost_of_a_request_is_the_time_outside_onnxruntime() -> None:
    # 1300 rows in 3 s, of which onnxruntime alone needs 1300 x 3 / 1600 s.
    assert round_of().us_per_request == pytest.approx((3 - 1300 * 3 / 1600) / 1300 * 1e6)
    # A fixed cost of 200 us: the share falls where the machine is faster, the cost stays.
    slow, fast = (at_speed("http", 1, rows_per_s, cost_us=200) for rows_per_s in (500.0, 1000.0))
    assert slow.share == pytest.approx(1 / 1.1)
    assert fast.share == pytest.approx(1 / 1.2)
    assert slow.us_per_request == pytest.approx(200)
    assert fast.us_per_request == pytest.approx(200)


def at_speed(contender: str, number: int, ceiling: float, *, cost_us: float, started_at: str = "") -> PeerRound:
    """A round at a speed of the machine, in which each request takes `cost_us` beside onnxruntime."""
    rows_per_s = 1 / (1 / ceiling + cost_us / 1e6)
    turn = Turn(seen=seen(10_000, 10_000 / rows_per_s), ceiling_before=ceiling, ceiling_after=ceiling)
    return round_of(contender, number, turns=(turn,), started_at=started_at)


def test_servers_are_compared_by_ratios_within_a_round() -> None:
    speeds = (500.0, 800.0, 1000.0)
    records = [
        at_speed(name, number, speed, cost_us=cost)
        for name, cost in (("http", 250.0), ("mosec", 200.0), ("grpc", 500.0))
        for number, speed in enumerate(speeds, start=1)
    ]
    found = {(each.ours, each.other): each for each in table.ratios(records)}
    assert list(found) == [("http", "mosec"), ("grpc", "mosec")]
    # Two intervals that hold together with 95 %: 97.5 % each.
    rates = [[1 / (1 / speed + cost / 1e6) for speed in speeds] for cost in (250.0, 200.0)]
    assert found["http", "mosec"].ratio == rounds.paired(*rates, level=0.975)
    assert found["http", "mosec"].gate_text == ">= 1.00 cannot tell"
    assert found["grpc", "mosec"].word == "slower"


def test_a_server_that_was_added_later_is_not_of_the_same_round() -> None:
    mosec = at_speed("mosec", 1, 1000.0, cost_us=0, started_at="2026-01-02T00:00:00+00:00")
    assert table.ratios([at_speed("http", 1, 500.0, cost_us=0, started_at="2026-01-01T00:00:00+00:00"), mosec]) == []


def test_the_order_is_drawn_anew_for_each_turn_from_the_seed() -> None:
    names = ["a", "b", "c", "d"]
    order = point.drawn(names, 3, 1, 400)
    assert order == point.drawn(names[::-1], 3, 1, 400)
    assert order != point.drawn(names, 3, 2, 400)
    assert order != point.drawn(names, 4, 1, 400)
    assert all(sorted(turn) == names for turn in order)
    # Each server is first in a quarter of the turns: 100 of 400, with a standard deviation of 8.7.
    assert all(abs(sum(turn[0] == name for turn in order) - 100) < 35 for name in names)
    assert len({tuple(turn) for turn in order}) == 24


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    point.write(round_of(), tmp_path)
    point.write(round_of("mosec", 2), tmp_path)
    assert list(point.read(tmp_path)) == [round_of(), round_of("mosec", 2)]
    servers = table.servers(list(point.read(tmp_path)))
    assert list(servers.columns[0].cells) == ["mosec", "ours, HTTP"]
    assert list(servers.columns[2].cells) == ["0.812 (0.812 to 0.812)"] * 2
    # 1300 rows in 3 s, while onnxruntime did 1600.
    assert list(servers.columns[4].cells) == ["533 (533 to 533)"] * 2


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "ranker.http.r1.json").write_text('{"format": 1, "kind": "other"}')
    with pytest.raises(Mistake, match=r"ranker\.http\.r1\.json: not a record"):
        list(point.read(tmp_path))


def gated(http: tuple[float, ...]) -> list[PeerRound]:
    """Rounds in which HTTP has these shares of mosec's throughput, at different speeds of the machine."""
    records = []
    for number, ratio in enumerate(http, start=1):
        speed = 400.0 + 100 * number
        records.append(at_speed("mosec", number, speed, cost_us=0))
        records.append(at_speed("http", number, speed, cost_us=(1 / ratio - 1) / speed * 1e6))
    return records


def test_only_a_ratio_that_is_surely_below_its_gate_misses_it() -> None:
    assert [each.gate_text for each in table.ratios(gated((1.05, 1.04, 1.06)))] == [">= 1.00 yes"]
    assert [each.gate_text for each in table.ratios(gated((0.99, 0.95, 1.03)))] == [">= 1.00 cannot tell"]
    assert [each.gate_text for each in table.ratios(gated((0.95, 0.94, 0.96)))] == [">= 1.00 NO"]
    assert table.passed(gated((0.99, 0.95, 1.03)))
    assert not table.passed(gated((0.95, 0.94, 0.96)))


@pytest.mark.parametrize(("ratio", "code"), [(1.05, 0), (0.80, 1)])
def test_rounds_that_are_there_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: float, code: int
) -> None:
    for record in gated((ratio, ratio * 1.001)):
        point.write(record, tmp_path)
    command = ["--rounds", "2", "--contender", "http", "--contender", "mosec", "--results", str(tmp_path)]
    assert main(command) == code
    assert "ours, HTTP" in capsys.readouterr().out


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


def test_calls_to_mosec_are_merged_and_each_gets_its_own_answer() -> None:
    """The server adds 1 to the first two values of each row, and counts the rows of each request."""
    rows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    sizes: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                asked = np.frombuffer(await reader.readexactly(length), dtype=np.float32).reshape(-1, 2, 3)
                sizes.append(len(asked))
                body = (asked[:, 0, :2] + 1).tobytes()
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async def replies() -> list[Rows]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, contextlib.AsyncExitStack() as stack:
            url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            calls = await run("mosec_merged", url, rows, stack)
            return [answer for _ in range(2) for answer in await asyncio.gather(*(call() for call in calls))]

    answers = asyncio.run(replies())
    assert np.array_equal(answers, np.concatenate([rows[:, 0, :2] + 1] * 2))
    assert sizes == [4, 4]


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


@pytest.mark.server
@pytest.mark.skipif(
    not (contenders.ENVIRONMENTS / "mosec" / ".requirements").is_file(),
    reason="python -m perf.studies.peers installs mosec, from the network",
)
@pytest.mark.parametrize("kind", ["mosec", "mosec_merged"])
def test_callers_of_mosec_get_their_own_answers(kind: str, ranker: Path) -> None:
    rows = np.random.default_rng(4).standard_normal((16, 2, 256)).astype(np.float32)
    expected = onnxruntime.InferenceSession(str(ranker)).run(None, {"features": rows})[0]

    async def measured(server: contenders.PeerServer) -> CallerCounts:
        async with contextlib.AsyncExitStack() as stack:
            with server.awake():
                return await loop(await run(kind, server.url, rows, stack), expected, 0.6, 2.0)

    with contenders.peer("mosec", ranker, PeerLimits(), 0, batches=kind == "mosec") as server:
        calls = asyncio.run(measured(server))
    assert calls.wrong == 0
    assert calls.calls >= 16
