"""gRPC for asyncio in forked processes: its one polling thread stays in the parent, so the child must not use it.

A child that was forked while such a channel was open would crash or wait for ever with its first call, and at its end.
Blocking gRPC and HTTP work there.
"""

import ctypes
import os
import weakref

import grpc.aio

from clients.errors import ClosedError

_CHANNELS: "weakref.WeakSet[grpc.aio.Channel]" = weakref.WeakSet()
_inherited = False


def note(channel: grpc.aio.Channel) -> None:
    """A child that is forked while this channel lives must not open one of its own."""
    _CHANNELS.add(channel)


def check(url: str) -> None:
    """Raise `ClosedError` where gRPC for asyncio cannot run any more."""
    if _inherited:
        raise ClosedError(
            f"{url}: this process was forked while an AsyncModel was open, and gRPC for asyncio does not run in such a "
            'child. Start processes with multiprocessing.get_context("spawn") or "forkserver", or open the AsyncModel '
            'after the fork; in this process use Model, or transport="http".',
            url=url,
        )


def _in_child() -> None:
    global _inherited
    for channel in list(_CHANNELS):
        _inherited = True
        # Deleting the last of them would wait for the polling thread, which is not here: none may ever be deleted.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))


os.register_at_fork(after_in_child=_in_child)
