"""Keeps forked processes from using gRPC: the polling thread of its asyncio part stays in the parent.

While that thread runs, which may be longer than its last channel exists, gRPC does not prepare for a fork. A child that
is forked then crashes or hangs in a call, over blocking gRPC too, and when it ends. HTTP works there.
"""

import ctypes
import os
import weakref

import grpc.aio

from .errors import ClosedError

_CHANNELS: "weakref.WeakSet[grpc.aio.Channel]" = weakref.WeakSet()
_opened, _inherited = False, False


def note(channel: grpc.aio.Channel) -> None:
    """Note a channel of asyncio: children that are forked from now on must not open any channel."""
    global _opened
    _opened = True
    _CHANNELS.add(channel)


def check(url: str) -> None:
    """Raise `ClosedError` in a process in which gRPC cannot run."""
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
        # Deleting the last channel would wait for the polling thread, which this process does not have.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))


os.register_at_fork(after_in_child=_in_child)
