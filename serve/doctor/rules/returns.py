"""M8: the value that `execute` returns, and the responses that it sends."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.flow.events import Act
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import Execution, own
from serve.doctor.rules.responses import ANSWER, DECOUPLED, LOOP, READ, STREAM, is_decoupled, model, returned_lists


@rule("M821", Severity.ERROR, bad=model("for request in requests:", f"    {READ}", f"    return {ANSWER}"), good=LOOP)
def execute_returns_a_list(source: Source) -> Iterator[Problem]:
    """`execute` returns one response, or a tuple or a generator, instead of a list.

    Every request fails: "Expected a list in the execute return, found type '<class '...InferenceResponse'>'"
    (measured).

    Source: python_backend, pb_stub.cc.
    Fix: return a list with one response for each request.
    """
    execution = Execution.of(source)
    if execution is None or is_decoupled(source):
        return
    for statement in execution.returns:
        if isinstance(statement.value, ast.Tuple | ast.GeneratorExp | ast.Dict) or _is_response(statement.value):
            yield Problem(
                source.at(statement),
                "execute returns something other than a list, so every request fails. "
                "Return a list with one response for each request.",
            )
    for node in own(execution.function):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            yield Problem(
                source.at(node),
                "execute is a generator, not a list of responses, so every request fails. Collect the responses in a "
                "list, or use response senders and a decoupled model.",
            )
            return


def _is_response(value: ast.expr | None) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute | ast.Name) and "InferenceResponse" in (
        called.attr if isinstance(called, ast.Attribute) else called.id
    )


@rule(
    "M822",
    Severity.ERROR,
    bad=model("responses = []", "for request in requests:", f"    {READ}", f"    responses.append({ANSWER})"),
    good=LOOP,
)
def execute_returns_something(source: Source) -> Iterator[Problem]:
    """`execute` neither returns nor sends a response, so no request is ever answered.

    None is right only for a model that answers through response senders. Without them the request hangs until its
    client gives up; there is no error, and the server's statistics count a success (measured).

    Source: python_backend README (Default Mode, Decoupled mode).
    Fix: return the list of responses.
    """
    execution = Execution.of(source)
    if execution is None or execution.escapes or is_decoupled(source):
        return
    answers = any(not _is_nothing(statement.value) for statement in execution.returns)
    # An execute that only raises answers every request with an error.
    raises = isinstance(execution.function.body[-1], ast.Raise)
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own(execution.function))
    if not answers and not raises and not yields and not execution.uses("get_response_sender"):
        yield Problem(
            source.at(execution.function),
            "execute returns no responses and uses no response sender, so clients wait forever. "
            "Return a list with one response for each request.",
        )


def _is_nothing(value: ast.expr | None) -> bool:
    """Whether the value holds no response: None, [None for request in requests], [None] * n."""
    match value:
        case None:
            return True
        case ast.Constant():
            return value.value is None
        case ast.ListComp():
            return _is_nothing(value.elt)
        case ast.BinOp(left=ast.List(elts=[element])):
            return _is_nothing(element)
    return False


@rule(
    "M823",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        f"    responses.append({ANSWER})",
        "return responses",
        config=DECOUPLED,
    ),
    good=STREAM,
)
def decoupled_models_send(source: Source) -> Iterator[Problem]:
    """A decoupled model returns its responses instead of sending them.

    In decoupled mode `execute` must return None. Otherwise every request fails with an error that says so (measured).

    Source: python_backend, pb_stub.cc; python_backend README (Decoupled mode).
    Fix: use request.get_response_sender(), or remove decoupled from the configuration.
    """
    execution = Execution.of(source)
    if execution is None or execution.escapes or not is_decoupled(source):
        return
    if execution.uses("get_response_sender"):
        return
    for statement in execution.returns:
        if not _is_nothing(statement.value):
            yield Problem(
                source.at(statement),
                "a decoupled model returns its responses, so every request fails. Send them with "
                "request.get_response_sender(), or remove decoupled.",
            )


@rule(
    "M824",
    Severity.ERROR,
    bad=model(
        "for request in requests:", f"    {READ}", f"    request.get_response_sender().send({ANSWER})", config=DECOUPLED
    ),
    good=STREAM,
)
def streams_end(source: Source) -> Iterator[Problem]:
    """No response is marked as the last one.

    The request then never ends, and tritonserver keeps its memory (measured: the client gets the response, and its
    stream never closes).

    Source: python_backend README (Decoupled mode); tritonserver.h (TRITONSERVER_RESPONSE_COMPLETE_FINAL).
    Fix: send the last response, or an empty one, with flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL.
    """
    execution = Execution.of(source)
    if execution is None or execution.escapes or not execution.uses("get_response_sender"):
        return
    sends = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "send"
    ]
    flagged = [call for call in sends if len(call.args) > 1 or any(key.arg != "response" for key in call.keywords)]
    if sends and not flagged and not execution.uses("TRITONSERVER_RESPONSE_COMPLETE_FINAL"):
        yield _unended(source, sends[0])
        return
    for event in source.events:
        inside = {*ast.walk(event.node)}
        # A request that is scheduled again ends in a later execution.
        is_again = execution.uses("set_release_flags")
        if event.act is Act.UNENDED and not is_again and all(call in inside for call in flagged):
            yield _unended(source, next((call for call in sends if call in inside), sends[0]))


def _unended(source: Source, call: ast.Call) -> Problem:
    return Problem(
        source.at(call),
        "no response is marked as the last one, so requests never end. Add "
        "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL to the last send().",
    )


@rule(
    "M826",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        "    sender = request.get_response_sender()",
        f"    sender.send({ANSWER})",
        f"    responses.append({ANSWER})",
        "return responses",
        config=DECOUPLED,
    ),
    good=STREAM,
)
def decoupled_models_return_nothing(source: Source) -> Iterator[Problem]:
    """A decoupled model sends its responses and returns some too.

    In decoupled mode `execute` must return None. The returned responses are lost: the client gets an error in their
    place, "the execute function must return None" (measured), or nothing if the last response was sent before.

    Source: python_backend, pb_stub.cc; python_backend README (Decoupled mode).
    Fix: remove the returned value.
    """
    execution = Execution.of(source)
    if execution is None or not is_decoupled(source) or not execution.uses("get_response_sender"):
        return
    for event, value in returned_lists(source):
        if event.has_sent and (value.item is None or not value.item.is_none):
            yield Problem(
                source.at(event.node),
                "a decoupled model sends its responses and returns some too: those never arrive. Return None.",
            )


@rule(
    "M825",
    Severity.WARNING,
    bad=Example(
        'backend: "python"',
        files={
            "1/model.py": "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
            "    async def execute(self, requests):\n"
            "        return [self.answer(request) for request in requests]\n\n"
            "    def answer(self, request):\n"
            f"        {READ}\n        return {ANSWER}\n"
        },
    ),
    good=LOOP,
)
def asynchronous_models_are_decoupled(source: Source) -> Iterator[Problem]:
    """`execute` is async and the model is not decoupled.

    The instance waits for each execution before it takes the next one (measured: 3 requests of 0.5 s each take 1.5 s,
    with a decoupled model 0.5 s).

    Source: python_backend README (Async BLS); server#7888.
    Fix: make the model decoupled, use more instances, or overlap work inside one execution with asyncio.gather.
    """
    execution = Execution.of(source)
    if execution is None or not isinstance(execution.function, ast.AsyncFunctionDef) or is_decoupled(source):
        return
    if not (execution.uses("gather") or execution.uses("async_exec") or execution.uses("create_task")):
        yield Problem(
            source.at(execution.function),
            "execute is async and the model is not decoupled, so executions do not overlap. Make the model "
            "decoupled, or use more instances.",
        )
