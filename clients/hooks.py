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

from ._options import Parameter
from ._steps import Step
from ._tensors import Array
from .errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """An inference request to `model` at `url`: its arrays by name, and the options of its caller.

    `timeout_s` is None without a deadline, `request_id` "" without an id, `priority` 0 for the model's default.
    """

    model: str
    url: str
    inputs: Mapping[str, Array]
    request_id: str = ""
    timeout_s: float | None = None
    priority: int = 0
    parameters: Mapping[str, Parameter] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


def request_of(step: Step, model: str, url: str) -> Request:
    """The request that a step sends, for hooks and transports of the user."""
    options = step.options
    return Request(
        model=model,
        url=url,
        inputs=step.inputs or {},
        request_id=options.request_id,
        timeout_s=options.timeout_s,
        priority=options.priority,
        parameters=options.parameters,
    )


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
        """Call the hooks before and after a step that runs the model."""
        request = request_of(step, self._model, self._url)
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
