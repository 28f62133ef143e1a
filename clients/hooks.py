"""Event hooks: functions that a client calls before it sends a request and after its answer has come.

    def log(response: Response) -> None:
        print(response.request.model, response.request.request_id, response.seconds, response.error)

    with Model("ranker", hooks={"response": [log]}) as model: ...

Hooks are plain functions for both clients and must not block. They run in the thread or task of the caller, so context
variables tell whose call it is; with `coalesce=True` a request has several callers and a task of its own. A hook that
raises ends the call with that error.
"""

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from .errors import InvalidInputError
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An encoded inference request. `timeout_s` is None without a deadline, `request_id` "" without an id.

    `url` is the server that it goes to; over several addresses a call that is made again is a request of its own.
    """

    model: str
    url: str
    request_id: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The end of a request: `error` is None if it was answered, or if the caller left a stream of answers.

    `seconds` is the time since it was sent.
    """

    request: Request
    error: BaseException | None
    seconds: float


class Hooks(TypedDict, total=False):
    """What `hooks=` takes: functions by event, called in this order."""

    request: Sequence[Callable[[Request], None]]
    response: Sequence[Callable[[Response], None]]


class EventHooks:
    """The hooks of one client; False if there are none. Raises `InvalidInputError` for anything but `Hooks`."""

    def __init__(self, hooks: Hooks | None, model: str, url: str) -> None:
        hooks = {} if hooks is None else hooks
        if not _is_hooks(hooks):
            raise InvalidInputError(
                'hooks: give lists of functions by event, {"request": [...], "response": [...]}; coroutine functions '
                "are not called."
            )
        self._request, self._response = tuple(hooks.get("request", ())), tuple(hooks.get("response", ()))
        self._model, self._url = model, url

    def __bool__(self) -> bool:
        return bool(self._request or self._response)

    @contextlib.contextmanager
    def around(self, step: Step) -> Iterator[None]:
        """Call the hooks before and after the call of `step`."""
        url = step.url or self._url
        request = Request(model=self._model, url=url, request_id=step.request_id, timeout_s=step.timeout_s)
        for before in self._request:
            before(request)
        sent, error = time.monotonic(), None
        try:
            yield
        except GeneratorExit:  # the caller has left the stream
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            response = Response(request=request, error=error, seconds=time.monotonic() - sent)
            for after in self._response:
                after(response)


def _is_hooks(hooks: object) -> bool:
    if not isinstance(hooks, Mapping) or set(hooks) - {"request", "response"}:
        return False
    return all(isinstance(functions, Sequence) and all(map(_is_hook, functions)) for functions in hooks.values())


def _is_hook(function: object) -> bool:
    """Whether it can be called and the call does not return a coroutine."""
    if isinstance(function, partial):
        return _is_hook(function.func)
    if not callable(function):
        return False
    return not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__))
