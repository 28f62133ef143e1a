"""Makes a call, checks its answer, and writes down what it ended in."""

import asyncio
from typing import Any, Protocol

from clients import AsyncModel, Model
from perf.studies.soak.call import SoakCall
from perf.studies.soak.outcome import CallOutcome, of


class Book(Protocol):
    """Where calls are written down: a ledger, or a child's pipe to one."""

    def begin(self, call: SoakCall) -> None:
        """It is about to be sent."""

    def end(self, call: SoakCall, outcome: CallOutcome, said: str = "") -> None:
        """It ended."""


def settle(call: SoakCall, model: Model, book: Book) -> None:
    """Make a call that blocks."""
    book.begin(call)
    try:
        found = model.predict(*call.given, timeout_s=call.timeout_s)
    except Exception as error:
        book.end(call, of(error), described(error))
    else:
        book.end(call, *checked(call, found))


async def settle_async(call: SoakCall, model: AsyncModel, book: Book) -> None:
    """Make a call in a task of its own, which is cancelled when the call says so."""
    book.begin(call)
    task = asyncio.create_task(model.predict(*call.given, timeout_s=call.timeout_s))
    if call.cancel_after_s is not None:
        await asyncio.sleep(call.cancel_after_s)
        task.cancel()
    # wait() raises nothing itself, so a CancelledError is the call's.
    await asyncio.wait((task,))
    if task.cancelled():
        book.end(call, CallOutcome.CANCELLED, "CancelledError")
    elif error := task.exception():
        book.end(call, of(error), described(error))
    else:
        book.end(call, *checked(call, task.result()))


def checked(call: SoakCall, found: Any) -> tuple[CallOutcome, str]:
    """Right or wrong, and what is wrong."""
    wrong = call.request.wrong(found)
    return (CallOutcome.WRONG, wrong) if wrong else (CallOutcome.RIGHT, "")


def described(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"
