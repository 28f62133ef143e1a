"""A network that takes its time: a proxy on this machine that hands on every byte later."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def far_away(port: int, round_trip_s: float) -> Iterator[int]:
    """A port that leads to `port`, each way taking half of `round_trip_s`."""
    loop = asyncio.new_event_loop()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        # What follows is read meanwhile, so a long answer is as late as a short one.
        while part := await source.read(1 << 16):
            loop.call_later(round_trip_s / 2, target.write, part)
        loop.call_later(round_trip_s / 2, target.close)

    async def connected(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError):
            await asyncio.gather(carry(source, to_there), carry(there, target))

    listening = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(listening.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
