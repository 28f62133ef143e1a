"""gRPC for clients that block, by grpcio; `_async_grpc.py` is for asyncio.

Triton before 2.59 (release 25.06) can crash when an inference call is cancelled: its front end uses the state of a
request after it has freed it, if the cancellation comes together with the answer (server issues 7368 and 8034; fixed by
7840, 8078 and 8220). A deadline of gRPC is a cancellation too: 2.51 crashed after 1,400 to 4,200 calls of either kind.
grpcio cancels in more cases: when nobody holds the call any more, when a task that waits for it is cancelled, and when
the channel is closed.

So before 2.59 the client keeps the time itself, and holds each call until it is answered. A caller that is cancelled or
out of time leaves at once, and its answer is dropped when it comes. Only calls that run a model need this.
"""

import contextlib
import os
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import grpc

from ._address import Address
from ._grpc_format import Part, whole
from ._in_flight import MOST_ABANDONED
from ._steps import INFER, STREAM, Step, T, deadline_after, seconds_left
from ._tensors import Array
from .errors import ClientError, ClosedError, ServerUnreachableError, TransportError, explained, not_tritons, timed_out

SERVICE = "/inference.GRPCInferenceService/"

SURVIVES = (2, 59)
"""The first version that survives the cancelling of inference calls: release 25.06."""

MOST_BYTES = (1 << 31) - 1
"""The largest limit of an answer that gRPC can be given."""

CLOSE_S = 5.0
"""How long `close` waits for calls in flight on a server that would not survive their cancellation."""

RECONNECT_S, PAUSE_S = 0.7, 0.1
"""How long a call waits for a server that is gone, and the pause before each further attempt."""

OPTIONS = (
    ("grpc.max_send_message_length", -1),
    # Servers end the connection of a client that asks more often than every 300 s whether they are there.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A server that starts again is found soon; one attempt may take 5 s, since a server may be 300 ms away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 300),
    ("grpc.lb_policy_name", "round_robin"),
    # HTTP has no proxy either.
    ("grpc.enable_http_proxy", 0),
)

# What gRPC says if nothing of a call has reached a server.
_NOT_SENT = re.compile(r"failed to connect|DNS resolution failed|errors resolving|connections to all backends failing")
# How it says that a server ended the connection: during a handshake, or because it does not speak TLS.
_ENDED = re.compile(r"Socket closed|Connection reset|Unwrap failed")

_process: list[int] = []
"""The process that has opened a channel: grpcio does not work in one that was forked from it."""

_left_open: set[object] = set()
"""Connections with calls that must not be cancelled; grpcio cancels what nobody holds."""


class GrpcTarget:
    """What both kinds of connection share: the channel's options, and what may be done to a call.

    `survives` is whether the server survives cancellations; False until its answer to ServerMetadata has shown it.
    """

    def __init__(self, address: Address, model: str, most_bytes: int) -> None:
        self._address, self._model = address, model
        self._options = [*OPTIONS, ("grpc.max_receive_message_length", min(most_bytes, MOST_BYTES))]
        self.survives, self._closed = False, False
        self._methods: dict[str, Any] = {}
        self.about = (address.url, model)
        if _process and _process != [os.getpid()]:
            raise TransportError(
                f"{address.url}: this process was forked from one that had used gRPC, which does not work in a child. "
                'Open the first client after the fork, start processes with "spawn", or use HTTP (http://).',
                model=model,
                url=address.url,
            )
        _process[:] = [os.getpid()]

    def _channel(self, module: Any) -> Any:
        """A channel of `grpc` or `grpc.aio`; nothing is sent yet."""
        if tls := self._address.tls:
            credentials = grpc.ssl_channel_credentials(*tls.contents())
            return module.secure_channel(self._address.target, credentials, self._options)
        return module.insecure_channel(self._address.target, self._options)

    def _method(self, channel: Any, step: Step) -> Any:
        """The method of a step: a function of bytes that gives bytes."""
        if (method := self._methods.get(step.method)) is None:
            kind = channel.stream_stream if step.method == STREAM else channel.unary_unary
            method = self._methods[step.method] = kind(SERVICE + step.method, None, None)
        return method

    def _may_cancel(self, step: Step) -> bool:
        return self.survives or step.method not in (INFER, STREAM)

    def _metadata(self, step: Step) -> tuple[tuple[str, str], ...]:
        """The headers; calls about shared memory carry the secret of our own servers, too."""
        if "SharedMemory" not in step.method:
            return self._address.headers
        return (*self._address.headers, *self._address.secret().items())

    def _read(self, step: Step, content: bytes | None) -> Any:
        """What an answer says; raises a `ClientError`."""
        if content is None:
            raise not_tritons("OK without a message", b"", *self.about)
        answer = step.read(content)
        if step.method == "ServerMetadata":
            self.survives = survives(answer["version"])
        return answer

    def _refused(self, error: Any, step: Step) -> ClientError:
        """The error for a call that ended with another status than OK."""
        status, text = error.code().name, error.details() or ""
        if status == "DEADLINE_EXCEEDED" and step.deadline is not None:
            return self._late(step)
        is_sent = not _NOT_SENT.search(text)
        if not is_sent and _ENDED.search(text):
            if not self._address.tls:
                return ServerUnreachableError(
                    f"{self._address.url}: what is there speaks no plain gRPC ({text}). If it speaks TLS, write "
                    "grpcs://; if this is the HTTP port, write http:// before it.",
                    status=status,
                    text=text,
                    model=self._model,
                    url=self._address.url,
                )
            text = f"handshake failed: {text}"
        return explained(status, text, *self.about, sent=is_sent)

    def _may_wait(self, error: ServerUnreachableError, until: float | None, deadline: float | None) -> bool:
        """Whether a call may be made again soon: nothing was sent, and the server may only be starting again."""
        now = time.monotonic() + PAUSE_S
        is_gone = type(error) is ServerUnreachableError and error.retryable
        return is_gone and now < (until or 0) and (deadline is None or now < deadline)

    def _late(self, step: Step) -> ClientError:
        return timed_out(step.options.timeout_s, *self.about)

    def _shut(self) -> ClosedError:
        return ClosedError(f"'{self._model}' was closed.", model=self._model, url=self._address.url)


class StreamAnswers:
    """Reads the answers of a stream; after the first one no error says that the model did not run."""

    def __init__(self, target: GrpcTarget, step: Step) -> None:
        self._target, self._step, self._has_answered, self._has_ended = target, step, False, False

    def read(self, content: bytes) -> dict[str, Array] | None:
        """The outputs, None for an end without any; raises a `ClientError`."""
        try:
            part: Part = self._step.read(content)
        except ClientError as error:
            raise self.said(error) from error
        self._has_ended = part.is_last
        self._has_answered = self._has_answered or part.outputs is not None
        return part.outputs

    def said(self, error: ClientError) -> ClientError:
        """The error of a stream."""
        error.retryable = error.retryable and not self._has_answered
        return error

    def end(self) -> None:
        """Raise `ServerFailureError` if the stream ended too soon."""
        if not self._has_ended:
            raise explained("INTERNAL", "the stream ended before its last answer", *self._target.about)


def survives(version: str) -> bool:
    """Whether a server of this version survives cancellations; False if the version cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= SURVIVES


class GrpcConnection(GrpcTarget):
    """A connection that several threads may use together."""

    def __init__(self, address: Address, model: str, most_bytes: int) -> None:
        super().__init__(address, model, most_bytes)
        self._opened = self._channel(grpc)
        self._changed = threading.Condition()
        self._idle: list[CallThread] = []
        self._unfinished: set[object] = set()
        self._abandoned: set[object] = set()
        weakref.finalize(self, _end, self._idle)  # of a model that nobody has closed

    def send(self, step: Step) -> Any:
        """Send one request; returns what `step.read` makes of its answer. Raises a `ClientError`."""
        until = deadline_after(RECONNECT_S)
        while True:
            try:
                return self._read(step, self._send_once(step))
            except ServerUnreachableError as error:
                if not self._may_wait(error, until, step.deadline):
                    raise
            time.sleep(PAUSE_S)

    def _send_once(self, step: Step) -> bytes:
        try:
            if self._closed:
                raise self._shut()
            method, metadata = self._method(self._opened, step), self._metadata(step)
            if self._may_cancel(step):
                return method(whole(step), timeout=seconds_left(step.deadline), metadata=metadata)  # type: ignore[no-any-return]
            call = partial(method, whole(step), metadata=metadata)
            # Ctrl-C, which would cancel the call, reaches the main thread only.
            if step.deadline is None and threading.current_thread() is not threading.main_thread():
                return self._stay(call)
            return self._hold(call, step.deadline)
        except grpc.RpcError as error:
            raise self._shut() if self._closed else self._refused(error, step) from error
        except TimeoutError as error:
            raise self._late(step) from error
        except ValueError as error:  # the channel is closed
            raise self._shut() from error

    def _stay(self, call: Callable[[], bytes]) -> bytes:
        """The answer of a call that its caller cannot leave."""
        with self._changed:
            self._enter(None)
            self._unfinished.add(call)
        try:
            return call()
        finally:
            self._finished(call)

    def _hold(self, call: Callable[[], bytes], deadline: float | None) -> bytes:
        """The answer of a call that goes on if its caller leaves, at the deadline or by Ctrl-C; a thread makes it."""
        answer = Future[bytes]()
        with self._changed:
            self._enter(deadline)
            thread = self._idle.pop() if self._idle else self._begun(CallThread)
            self._unfinished.add(answer)
        thread.calls.put((call, answer, partial(self._finished, answer, thread)))
        try:
            return answer.result(seconds_left(deadline))
        except grpc.RpcError:
            raise
        except BaseException:
            self._abandon(answer)
            raise

    def _enter(self, deadline: float | None) -> None:
        """Wait until few enough calls are abandoned; raises `TimeoutError`, and `ClosedError` after `close`."""
        left = seconds_left(deadline)
        if not self._changed.wait_for(lambda: self._closed or len(self._abandoned) < MOST_ABANDONED, left):
            raise TimeoutError
        if self._closed:
            raise self._shut()

    def _abandon(self, call: object) -> None:
        """Take that the caller of a call has left, which goes on."""
        with self._changed:
            if call in self._unfinished:
                self._abandoned.add(call)

    def _begun(self, begin: Callable[[], T]) -> T:
        """What starts a thread; raises `ClientError` if the system allows no more."""
        try:
            return begin()
        except RuntimeError as error:
            raise ClientError(
                f"{self._address.url}: a call over gRPC needs a thread, and the system said: {error}. Make fewer calls "
                "together, or allow more threads (ulimit -u).",
                model=self._model,
                url=self._address.url,
                retryable=True,
            ) from error

    def _finished(self, call: object, thread: "CallThread | None" = None) -> None:
        """Take that a call has ended; called by the thread that made it."""
        with self._changed:
            self._unfinished.discard(call)
            self._abandoned.discard(call)
            self._changed.notify_all()
            is_last = self._closed and not self._unfinished
            if thread and not self._closed:
                self._idle.append(thread)
            elif thread:
                thread.calls.put(None)
        if is_last and self in _left_open:
            _left_open.discard(self)
            self._opened.close()

    def stream(self, step: Step) -> Iterator[dict[str, Array]]:
        """The outputs of the answers to one request, as they come; raises a `ClientError`.

        Closing the iterator cancels the request on the server if that survives it; otherwise its answers are dropped.
        """
        try:
            waiting = self._begin_stream(step)
        except TimeoutError as error:
            raise self._late(step) from error
        answers = StreamAnswers(self, step)
        try:
            while (content := waiting.next(step.deadline)) is not None:
                if (outputs := answers.read(content)) is not None:
                    yield outputs
            answers.end()
        except grpc.RpcError as error:
            raise self._shut() if self._closed else answers.said(self._refused(error, step)) from error
        except (TimeoutError, queue.Empty) as error:
            raise self._late(step) from error
        finally:
            waiting.leave(cancels=self.survives)
            if not self.survives:
                self._abandon(waiting.call)

    def _begin_stream(self, step: Step) -> "StreamThread":
        method, metadata = self._method(self._opened, step), self._metadata(step)
        with self._changed:
            self._enter(step.deadline)
            timeout_s = seconds_left(step.deadline) if self.survives else None
            waiting = self._begun(partial(StreamThread, self._finished))
            try:
                waiting.begin(self._begun(partial(method, iter([whole(step)]), timeout=timeout_s, metadata=metadata)))
            except ClientError:
                waiting.begin(())
                raise
            self._unfinished.add(waiting.call)
        return waiting

    def close(self) -> None:
        """End the connection; on a server that would not survive that, when the calls in flight are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if not self.survives:
                self._changed.wait_for(lambda: not self._unfinished, CLOSE_S)
            _end(self._idle)
            if self._unfinished and not self.survives:
                _left_open.add(self)  # the last of them closes it
                return
        self._opened.close()


def _end(threads: "list[CallThread]") -> None:
    for thread in threads:
        thread.calls.put(None)


class CallThread(threading.Thread):
    """Makes the calls that it gets in `calls`, one after another, until it gets None."""

    def __init__(self) -> None:
        super().__init__(name="triton-call", daemon=True)
        self.calls: queue.SimpleQueue[tuple[Callable[[], bytes], Future[bytes], Callable[[], None]] | None]
        self.calls = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Called by Python in the thread."""
        while work := self.calls.get():
            call, answer, finished = work
            try:
                content = call()
            except BaseException as error:
                finished()
                answer.set_exception(error)
            else:
                finished()
                answer.set_result(content)
            del work, call, answer, finished


class StreamThread:
    """Reads the answers of a stream in a thread, one ahead of the caller, so that waiting for one can end."""

    call: Any

    def __init__(self, finished: Callable[[Any], None]) -> None:
        self._finished, self._is_left, self._calls = finished, False, queue.SimpleQueue[Any]()
        self._answers: queue.Queue[Any] = queue.Queue(1)
        threading.Thread(target=self._run, name="triton-stream", daemon=True).start()

    def begin(self, call: Any) -> None:
        """Read the answers of this call."""
        self.call = call
        self._calls.put(call)

    def next(self, deadline: float | None) -> bytes | None:
        """The next answer, None at the end; raises `grpc.RpcError`, `TimeoutError` or `queue.Empty`."""
        answer = self._answers.get(timeout=seconds_left(deadline))
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def leave(self, *, cancels: bool) -> None:
        """Take no more answers: cancel the request on the server, or let the thread drop them."""
        self._is_left = True
        if cancels:
            self.call.cancel()
        with contextlib.suppress(queue.Empty):
            self._answers.get_nowait()

    def _run(self) -> None:
        end: Exception | None = None
        call = self._calls.get()
        try:
            for content in call:
                if not self._is_left:
                    self._answers.put(content)
        except grpc.RpcError as error:
            end = error
        self._finished(call)
        if not self._is_left:
            self._answers.put(end)
