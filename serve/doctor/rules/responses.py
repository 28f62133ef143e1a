"""M8: one response of a model.py for each request, and the value that `execute` returns."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.flow.events import Act, Event
from serve.doctor.flow.values import Kind, Size, Value
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import Execution, batches, own

PYTHON = 'backend: "python"'
BATCHED = f"{PYTHON}\ndynamic_batching {{ }}"
DECOUPLED = 'backend: "python"\nmodel_transaction_policy { decoupled: true }'
HEAD = (
    "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    def execute(self, requests):\n"
)
READ = 'x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()'
ARRAYS = 'arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]'
ANSWER = 'pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])'


def model(*lines: str, config: str = PYTHON) -> Example:
    """A Python model whose `execute` has these lines."""
    return Example(config, files={"1/model.py": HEAD + "".join(f"        {line}\n" for line in lines)})


def looped(*lines: str, read: str = READ, answer: str = ANSWER, config: str = PYTHON) -> Example:
    """A Python model that reads each request, does `lines`, and appends its answer."""
    inside = (f"    {line}" for line in (read, *lines, f"responses.append({answer})"))
    return model("responses = []", "for request in requests:", *inside, "return responses", config=config)


LOOP = looped()
STREAM = model(
    "for request in requests:",
    f"    {READ}",
    "    sender = request.get_response_sender()",
    f"    sender.send({ANSWER})",
    "    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    config=DECOUPLED,
)


def is_decoupled(source: Source) -> bool:
    """Whether the model answers through response senders, or may, because model.py sets its transaction policy."""
    proto = source.configuration.proto
    if proto.HasField("model_transaction_policy"):
        return bool(proto.model_transaction_policy.decoupled)
    return "set_model_transaction_policy" in source.document.text


def sends(source: Source) -> bool:
    """Whether the model may answer through response senders."""
    execution = Execution.of(source)
    return is_decoupled(source) or execution is None or execution.uses("get_response_sender")


@rule(
    "M811",
    Severity.ERROR,
    bad=model(f"{READ.replace('request', 'requests[0]')}", f"return [{ANSWER}]", config=BATCHED),
    good=looped(config=BATCHED),
)
def every_request_is_read(source: Source) -> Iterator[Problem]:
    """`execute` reads only the first request, and the model batches.

    With dynamic batching `requests` is the whole batch. One response for several requests fails all of them: "Number of
    InferenceResponse objects do not match the number of InferenceRequest objects" (measured: 4 requests in a batch, 4
    errors). A single request works, so the error appears only under load.

    Source: python_backend README (execute); server#3984, server#6740.
    Fix: loop over requests and answer each one.
    """
    execution = Execution.of(source)
    if execution is None or execution.escapes or not batches(source):
        return
    first = execution.reads_only_the_first
    if first is not None:
        yield Problem(
            source.at(first),
            f"execute reads only {execution.requests}[0], and a batch has several requests, which all fail. "
            f"Loop over {execution.requests} and answer each.",
        )


@rule(
    "M812",
    Severity.ERROR,
    bad=looped("if x.size == 0:", "    continue"),
    good=looped(
        "if x.size == 0:",
        '    responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("empty")))',
        "    continue",
    ),
)
def every_request_is_answered_once(source: Source) -> Iterator[Problem]:
    """A path through the loop over the requests appends no response, or two.

    The list must have one response for each request, in their order. Otherwise all requests of the batch fail: "Number
    of InferenceResponse objects do not match the number of InferenceRequest objects. ... size is:4, and ... size is:3"
    (measured).

    Source: python_backend README (execute).
    Fix: append InferenceResponse(error=pb_utils.TritonError(...)) if there is no other response.
    """
    if sends(source):
        return
    reported: dict[ast.AST, str] = {}
    for event, value in returned_lists(source):
        if (number := _wrong_number(event, value)) is not None:
            reported[value.loop or event.node] = number
        elif event.is_inside and value.size is not None and value.size.is_constant and batches(source):
            yield Problem(
                source.at(event.node),
                "this returns from inside the loop over the requests, before every request has its response, so the "
                "whole batch fails. Return after the loop.",
            )
    for node, number in reported.items():
        yield Problem(
            source.at(node),
            f"a path through this loop appends {number}, so the whole batch fails. Append exactly one for each "
            "request; use error=pb_utils.TritonError(...) if there is no result.",
        )


def _wrong_number(event: Event, value: Value) -> str | None:
    """How many responses a request gets instead of one; None if that is right or unknown."""
    counts = [size.ones if size.is_constant else -1 for size in value.sizes]
    if counts and min(counts) >= 0:
        return "no response" if 0 in counts else f"{max(counts)} responses"
    is_kept = isinstance(event.node, ast.Return) and isinstance(event.node.value, ast.Name)
    if value.size == Size() and is_kept and not event.is_inside:
        return "no response"
    size = value.size or Size()
    return f"{size.requests} responses" if size.requests > 1 and size == Size(requests=size.requests) else None


def returned_lists(source: Source) -> Iterator[tuple[Event, Value]]:
    """Every return of `execute` with a list."""
    for event in source.events:
        if event.act is Act.RETURNS and event.value is not None and event.value.kind is Kind.LIST:
            yield event, event.value


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


@rule("M823", Severity.ERROR, bad=looped(config=DECOUPLED), good=STREAM)
def decoupled_models_send(source: Source) -> Iterator[Problem]:
    """A decoupled model returns its responses instead of sending them.

    In decoupled mode `execute` must return None. Otherwise every request fails with an error that says so (measured).

    Source: python_backend, pb_stub.cc; python_backend README (Decoupled mode).
    Fix: use request.get_response_sender(), or remove decoupled from the configuration.
    """
    execution = Execution.of(source)
    if execution is None or execution.escapes or not source.configuration.proto.model_transaction_policy.decoupled:
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
