"""gRPC in forked processes: the polling thread of its asyncio part stays in the parent, so the child must not use it.

While that thread runs, and it may run on after its last channel, gRPC does not prepare itself for a fork. A child that
is forked then crashes or waits for ever in a call, over blocking gRPC as well, and at its end. HTTP works there.
"""

import ctypes
import os
import weakref

import grpc.aio

from clients.errors import ClosedError

_CHANNELS: "weakref.WeakSet[grpc.aio.Channel]" = weakref.WeakSet()
_opened, _inherited = False, False


def note(channel: grpc.aio.Channel) -> None:
    """A child that is forked from now on must not open one of its own."""
    global _opened
    _opened = True
    _CHANNELS.add(channel)


def check(url: str) -> None:
    """Raise `ClosedError` where gRPC cannot run any more."""
    if _inherited:
        raise ClosedError(
            f"{url}: this process was forked from one that had opened an AsyncModel over gRPC, and gRPC does not run "
            'in such a child. Start processes with multiprocessing.get_context("spawn") or "forkserver", or fork '
            'before the first AsyncModel; in this process use transport="http".',
            url=url,
        )


def _in_child() -> None:
    global _inherited
    _inherited = _opened
    for channel in list(_CHANNELS):
        # Deleting the last of them would wait for the polling thread, which is not here: none may ever be deleted.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))


os.register_at_fork(after_in_child=_in_child)
