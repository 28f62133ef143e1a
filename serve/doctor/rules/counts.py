"""M8: the number of responses of a model.py."""

import ast
from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.flow.values import Kind, Size, Value
from serve.doctor.python_file import PythonFile
from serve.doctor.rule import rule
from serve.doctor.rules.requests import Execution, batches, takes_one_row
from serve.doctor.rules.responses import ANSWER, PYTHON, READ, model, returned_lists, sends

BATCHED = f"{PYTHON}\ndynamic_batching {{ }}"
ARRAYS = 'arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]'
JOIN = "joined = np.concatenate(arrays) * 2"
PARTS = "parts = np.split(joined, np.cumsum([len(array) for array in arrays])[:-1])"
SPLIT = model(
    "import numpy as np",
    ARRAYS,
    JOIN,
    PARTS,
    'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]',
    config=BATCHED,
)
LOOP = model(
    "responses = []",
    "for request in requests:",
    f"    {READ}",
    f"    responses.append({ANSWER})",
    "return responses",
    config=BATCHED,
)


def _fixed(source: Source) -> Iterator[tuple[ast.AST, Size]]:
    """Returned lists whose length is not the number of requests, and the length."""
    execution = Execution.of(source)
    if execution is None or execution.escapes or sends(source):
        return
    for event, value in returned_lists(source):
        size = value.size
        if size is None or event.is_inside or size.rows or size.own:
            continue
        is_of_one = size == Size(ones=1)
        if (is_of_one and batches(source)) or (size.ones and not is_of_one):
            yield event.node, size


@rule(
    "M813",
    Severity.ERROR,
    bad=model(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        f"responses.append({ANSWER})",
        "return responses",
        config=BATCHED,
    ),
    good=LOOP,
)
def responses_are_appended_in_the_loop(source: Source) -> Iterator[Problem]:
    """A response is appended after the loop over the requests, not inside it.

    A batch of several requests gets one response, that of the last request, and all of them fail: "Number of
    InferenceResponse objects do not match the number of InferenceRequest objects" (measured: 8 requests in a batch, 8
    errors). A single request works, so the error appears only under load.

    Source: python_backend README (execute).
    Fix: indent the line, so that it is in the loop.
    """
    late = _appended_late(source)
    for _ in _fixed(source):
        if late is not None:
            yield Problem(
                source.at(late),
                "this response is appended after the loop over the requests, so a batch of several requests gets one "
                "response and fails as a whole. Append inside the loop.",
            )
            return


def _appended_late(file: PythonFile) -> ast.stmt | None:
    """A statement that adds what a loop before it has made to a list; None if there is none."""
    bodies = [getattr(node, "body", None) for node in ast.walk(file.tree)]
    blocks: list[list[ast.stmt]] = [body for body in bodies if isinstance(body, list)]
    for block in blocks:
        made: set[str] = set()
        for statement in block:
            loops = [node for node in ast.walk(statement) if isinstance(node, ast.For | ast.AsyncFor)]
            if not loops and _names(statement, ast.Load) & made and any(map(_adds, ast.walk(statement))):
                return statement
            if not loops and isinstance(statement, ast.Assign) and _names(statement, ast.Load) & made:
                made |= _names(statement, ast.Store)
            for loop in loops:
                made |= _names(loop, ast.Store)
    return None


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that some code reads, or assigns."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _adds(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append" | "extend" | "insert"))):
            return True
        case ast.AugAssign(op=ast.Add(), value=ast.List()):
            return True
    return False


@rule(
    "M814",
    Severity.ERROR,
    bad=model(
        "import numpy as np",
        ARRAYS,
        JOIN,
        'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", joined)])]',
        config=BATCHED,
    ),
    good=SPLIT,
)
def a_batch_has_a_response_for_each_request(source: Source) -> Iterator[Problem]:
    """`execute` returns a fixed number of responses, usually one, whatever the number of requests.

    All requests of a batch of several fail: "Number of InferenceResponse objects do not match the number of
    InferenceRequest objects" (measured: 8 requests in a batch, 8 errors). A single request works.

    Source: python_backend README (execute); server#3984.
    Fix: split the result by the rows of the requests and return one response for each; for an error return
    `[response] * len(requests)`.
    """
    if _appended_late(source) is not None or _reads_the_first(source):
        return
    for node, size in _fixed(source):
        number = "one response" if size == Size(ones=1) else "another number of responses than requests"
        yield Problem(
            source.at(node),
            f"execute returns {number} for the whole batch, which then fails. Return one for each request.",
        )


def _reads_the_first(source: Source) -> bool:
    """Whether M811 explains it."""
    execution = Execution.of(source)
    return execution is not None and execution.reads_only_the_first is not None


@rule(
    "M819",
    Severity.ERROR,
    bad=model(
        "import numpy as np",
        ARRAYS,
        JOIN,
        'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", row[None])]) for row in joined]',
        config=BATCHED,
    ),
    good=SPLIT,
)
def responses_are_not_made_for_rows(source: Source) -> Iterator[Problem]:
    """`execute` returns one response for each row of the batch.

    A request may bring several rows, up to max_batch_size. Then there are more responses than requests, and the whole
    batch fails (measured: a request of 2 rows and 6 of one row, 7 errors). Not reported if the file compares the number
    of rows with 1.

    Source: python_backend README (execute); Triton's model configuration (max_batch_size counts rows).
    Fix: split the result by the rows of the requests.
    """
    if sends(source) or not batches(source) or takes_one_row(source):
        return
    for event, value in returned_lists(source):
        if _is_per_row(value) and not event.is_inside:
            yield Problem(
                source.at(event.node),
                "execute returns a response for each row, and a request may have several, which fails its whole "
                "batch. Split the result by the rows of each request.",
            )


def _is_per_row(value: Value) -> bool:
    is_plain = value.item is None or value.item.kind in (Kind.RESPONSE, Kind.UNKNOWN, Kind.ANY)
    return is_plain and value.size == Size(rows=1)
