"""M8: one response of a model.py for each request."""

import ast
from collections.abc import Iterator, Sequence

from serve.doctor.finding import Problem, Severity
from serve.doctor.repository import Source
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import Execution, own

PYTHON = 'backend: "python"'
DECOUPLED = 'backend: "python"\nmodel_transaction_policy { decoupled: true }'
HEAD = (
    "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    def execute(self, requests):\n"
)
READ = 'x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()'
ANSWER = 'pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])'


def model(*lines: str, config: str = PYTHON) -> Example:
    """A Python model whose `execute` has these lines."""
    return Example(config, files={"1/model.py": HEAD + "".join(f"        {line}\n" for line in lines)})


LOOP = model(
    "responses = []", "for request in requests:", f"    {READ}", f"    responses.append({ANSWER})", "return responses"
)
STREAM = model(
    "for request in requests:",
    f"    {READ}",
    "    sender = request.get_response_sender()",
    f"    sender.send({ANSWER})",
    "    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    config=DECOUPLED,
)


def is_decoupled(source: Source) -> bool:
    """Whether the model answers through response senders."""
    return bool(source.configuration.proto.model_transaction_policy.decoupled)


def _batches(source: Source) -> bool:
    config = source.configuration
    return config.proto.max_batch_size > 1 and config.scheduler in ("dynamic_batching", "sequence_batching")


@rule(
    "M811",
    Severity.ERROR,
    bad=model(
        f"{READ.replace('request', 'requests[0]')}", f"return [{ANSWER}]", config=f"{PYTHON}\ndynamic_batching {{ }}"
    ),
    good=Example(f"{PYTHON}\ndynamic_batching {{ }}", files=LOOP.files),
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
    if execution is None or execution.escapes or not _batches(source):
        return
    uses = [node for node in ast.walk(execution.function) if _is_name(node, execution.requests)]
    firsts = [
        node
        for node in ast.walk(execution.function)
        if isinstance(node, ast.Subscript)
        and _is_name(node.value, execution.requests)
        and isinstance(node.slice, ast.Constant)
    ]
    if firsts and len(firsts) == len(uses):
        yield Problem(
            source.at(firsts[0]),
            f"execute reads only {execution.requests}[0], and a batch has several requests, which all fail. "
            f"Loop over {execution.requests} and answer each.",
        )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


Path = tuple[int, str]
"""The number of responses that one path through the loop's body appends, and how the path ends."""
GOES_ON = ("next", "continue")


class _UnknownError(Exception):
    """The responses that the loop appends cannot be counted."""


@rule(
    "M812",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        "    if x.size == 0:",
        "        continue",
        f"    responses.append({ANSWER})",
        "return responses",
    ),
    good=model(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        "    if x.size == 0:",
        '        responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("empty")))',
        "        continue",
        f"    responses.append({ANSWER})",
        "return responses",
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
    execution = Execution.of(source)
    if execution is None or is_decoupled(source) or execution.uses("get_response_sender"):
        return
    for name in _returned_lists(execution):
        loops = _loops(execution, name)
        if len(loops) != 1 or not _only_appended(execution, name, loops[0]):
            continue
        try:
            counts = {count for count, end in _paths(loops[0].body, name) if end in GOES_ON}
        except _UnknownError:
            continue
        if counts - {0} and counts != {1}:
            number = "no response" if 0 in counts else f"{max(counts)} responses"
            yield Problem(
                source.at(loops[0]),
                f'a path through this loop appends {number} to "{name}", so the whole batch fails. '
                "Append exactly one for each request; use error=pb_utils.TritonError(...) if there is no result.",
            )
    yield from _filtered(execution)


def _filtered(execution: Execution) -> Iterator[Problem]:
    """[... for request in requests if ...] as the list of responses."""
    for statement in execution.returns:
        if isinstance(statement.value, ast.ListComp) and len(statement.value.generators) == 1:
            loop = statement.value.generators[0]
            if loop.ifs and execution.is_over_requests(loop.iter):
                yield Problem(
                    execution.source.at(loop.ifs[0]),
                    "requests that this condition drops get no response, so the whole batch fails. "
                    "Answer them with error=pb_utils.TritonError(...).",
                )


def _returned_lists(execution: Execution) -> list[str]:
    """Names of empty lists that `execute` fills and returns."""
    begun = {
        node.targets[0].id
        for node in own(execution.function)
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.List)
        and not node.value.elts
    }
    returned = [statement.value.id for statement in execution.returns if isinstance(statement.value, ast.Name)]
    return sorted(begun & set(returned)) if len(set(returned)) == 1 else []


def _loops(execution: Execution, name: str) -> list[ast.For]:
    """The loops over the requests that append to the list."""
    return [
        node
        for node in own(execution.function)
        if isinstance(node, ast.For) and execution.is_over_requests(node.iter) and _appends(node, name)
    ]


def _appends(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and _is_name(node.func.value, name)
    ]


def _only_appended(execution: Execution, name: str, loop: ast.For) -> bool:
    """Whether the list is created once, appended to in this loop, returned, and used nowhere else."""
    uses = sum(_is_name(node, name) for node in ast.walk(execution.function))
    inside = len(_appends(loop, name))
    begun = sum(
        isinstance(node, ast.Assign) and any(_is_name(target, name) for target in node.targets)
        for node in ast.walk(execution.function)
    )
    return begun == 1 and uses == begun + inside + len(execution.returns)


def _paths(body: Sequence[ast.stmt], name: str) -> set[Path]:
    """Every path through some statements; paths that end the whole call do not count."""
    ways: set[Path] = {(0, "next")}
    for statement in body:
        further: set[Path] = set()
        for count, end in ways:
            if end != "next":
                further.add((count, end))
            else:
                further |= {(count + more, way) for more, way in _statement(statement, name)}
        ways = further
    return ways


def _statement(statement: ast.stmt, name: str) -> set[Path]:
    match statement:
        case ast.Continue():
            return {(0, "continue")}
        case ast.Break() | ast.Return() | ast.Raise():
            return {(0, "end")}
        case ast.If(orelse=[ast.If()]) if _may_be_complete(statement, name):
            raise _UnknownError
        case ast.If():
            return _paths(statement.body, name) | _paths(statement.orelse, name)
        case ast.With() | ast.AsyncWith():
            return _paths(statement.body, name)
        case ast.Try():
            return _tried(statement, name)
        case ast.Match():
            if _appends(statement, name) and not _is_open(statement.cases[-1].pattern):
                raise _UnknownError
            return {(0, "next")} if not _appends(statement, name) else _cases(statement, name)
        case ast.For() | ast.While() | ast.AsyncFor():
            if _appends(statement, name) or any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                raise _UnknownError
            return {(0, "next")}
    return {(len(_appends(statement, name)), "next")}


def _may_be_complete(statement: ast.If, name: str) -> bool:
    """Whether if and elif all append and there is no else: the rule cannot know whether a case is missing."""
    branch = statement
    while len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If):
        if not _appends(ast.Module(body=branch.body, type_ignores=[]), name):
            return False
        branch = branch.orelse[0]
    return not branch.orelse and bool(_appends(ast.Module(body=branch.body, type_ignores=[]), name))


def _is_open(pattern: ast.pattern) -> bool:
    """case _ and case name."""
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def _cases(statement: ast.Match, name: str) -> set[Path]:
    return set().union(*(_paths(case.body, name) for case in statement.cases))


def _tried(statement: ast.Try, name: str) -> set[Path]:
    """The paths of the body, or of a handler after a body that failed before it appended anything."""
    succeeded = {
        (count + more, way) if end == "next" else (count, end)
        for count, end in _paths(statement.body, name)
        for more, way in _paths(statement.orelse, name)
    }
    failed = set().union(*(_paths(handler.body, name) for handler in statement.handlers))
    return {
        (count + more, end if way == "next" else way)
        for count, end in succeeded | failed
        for more, way in _paths(statement.finalbody, name)
    }
