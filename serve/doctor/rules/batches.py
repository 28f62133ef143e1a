"""M8: what a model.py does with a batch: the number of responses, rows, exceptions and calls that wait."""

from collections.abc import Iterator

from serve.doctor.configuration import Source
from serve.doctor.finding import Problem, Severity
from serve.doctor.flow.events import Act
from serve.doctor.flow.values import REQUESTS, Kind, Size, Value, holds_all
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import Execution, answers_one_by_one, batches, takes_one_row
from serve.doctor.rules.responses import (
    ANSWER,
    ARRAYS,
    BATCHED,
    HEAD,
    PYTHON,
    READ,
    is_decoupled,
    looped,
    model,
    returned_lists,
    sends,
)

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
LOOP = looped(config=BATCHED)


def _reported(source: Source, act: Act, message: str) -> Iterator[Problem]:
    """A problem at each event of this kind; `{name}` in the message is the function that is called."""
    for event in source.events:
        if event.act is act:
            yield Problem(source.at(event.node), message.replace("{name}", event.name))


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
    InferenceRequest objects" (measured: 8 requests in a batch, 8 errors). A single request works. Often a response is
    appended after the loop over the requests, not inside it.

    Source: python_backend README (execute); server#3984.
    Fix: split the result by the rows of the requests and return one response for each, or indent the line that appends
    it; for an error return `[response] * len(requests)`.
    """
    execution = Execution.of(source)
    # M811 explains an execute that reads the first request only.
    if execution is None or execution.escapes or execution.reads_only_the_first or sends(source):
        return
    for event, value in returned_lists(source):
        size = value.size
        if size is None or event.is_inside or size.rows or size.own:
            continue
        is_of_one = size == Size(ones=1)
        if (is_of_one and batches(source)) or (size.ones and not is_of_one):
            number = "one response" if is_of_one else "another number of responses than requests"
            yield Problem(
                source.at(event.node),
                f"execute returns {number} for the whole batch, which then fails. Return one for each request.",
            )


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


RESPOND = 'pb_utils.InferenceResponse([pb_utils.Tensor("y", {})])'
WHERE = "        responses = []\n"
SLEEP = f"        time.sleep(0.05)\n{WHERE}"
NETWORK = "import numpy as np\n" + HEAD.replace(
    "    def execute",
    "    def initialize(self, args):\n"
    "        self.model = lambda x: np.asarray(x) * 2  # stands for a network\n\n    def execute",
)


def _network(*lines: str) -> Example:
    """A Python model that runs `self.model`."""
    return Example(BATCHED, files={"1/model.py": NETWORK + "".join(f"        {line}\n" for line in lines)})


@rule(
    "M815",
    Severity.WARNING,
    bad=looped("if x.min() < 0:", '    raise ValueError("x must not be negative")', config=BATCHED),
    good=looped(
        "if x.min() < 0:",
        '    error = pb_utils.TritonError("x must not be negative")',
        "    responses.append(pb_utils.InferenceResponse(error=error))",
        "    continue",
        config=BATCHED,
    ),
)
def a_bad_request_fails_alone(source: Source) -> Iterator[Problem]:
    """One bad request raises an exception in `execute`, which fails its whole batch.

    The exception answers every request of the batch (measured: 1 bad request beside 7 good ones, 8 errors). Reported
    for a `raise` that depends on one request in a loop over the requests, also in a method that it calls, and for an
    `assert` about values; not if an `except` catches it, and not for failed calls of other models (has_error).

    Source: python_backend README (Error Handling).
    Fix: answer this request with pb_utils.InferenceResponse(error=pb_utils.TritonError(...)) and go on.
    """
    if batches(source) and not is_decoupled(source):
        yield from _reported(
            source,
            Act.RAISES,
            "this exception is about one request and fails all requests of its batch. Answer this one with "
            "InferenceResponse(error=pb_utils.TritonError(...)).",
        )


@rule(
    "M816",
    Severity.ERROR,
    bad=model(
        "import numpy as np",
        ARRAYS,
        JOIN,
        f"return [{RESPOND.format('joined[i : i + 1]')} for i in range(len(requests))]",
        config=BATCHED,
    ),
    good=SPLIT,
)
def rows_are_not_taken_by_request(source: Source) -> Iterator[Problem]:
    """The rows of the whole batch are split by the number of the request, though a request may have several rows.

    A request may bring up to max_batch_size rows. Then the requests behind it get rows of others, with status 200
    (measured: after a request of 2 rows the next one gets the second row of that one). `np.split(rows, len(requests))`
    fails unless all requests have the same number of rows. Not reported if the file compares the number of rows with 1.

    Source: Triton's model configuration (max_batch_size counts rows); python_backend hands over requests unmerged.
    Fix: keep len(array) of each request and split by it: np.split(rows, np.cumsum(lengths)[:-1]).
    """
    if batches(source) and not takes_one_row(source):
        yield from _reported(
            source,
            Act.BY_REQUEST,
            "the rows of all requests are taken by the number of the request, and a request may have several rows, so "
            "requests get rows of others. Split by the rows of each request.",
        )


@rule(
    "M817",
    Severity.WARNING,
    bad=_network(
        "responses = []",
        "for request in requests:",
        f"    {READ}",
        f"    responses.append({RESPOND.format('self.model(x)')})",
        "return responses",
    ),
    good=_network(
        ARRAYS,
        "joined = self.model(np.concatenate(arrays))",
        "parts = np.split(joined, np.cumsum([len(array) for array in arrays])[:-1])",
        f"return [{RESPOND.format('part')} for part in parts]",
    ),
)
def a_network_runs_once_for_a_batch(source: Source) -> Iterator[Problem]:
    """A network runs once for each request, so a batch of requests saves nothing.

    The batcher makes requests wait for each other, and then they run one after the other (measured: 8 requests in a
    batch, 8 runs). Reported for calls of a session or of a model in a loop over the requests, also in a method that it
    calls.

    Source: python_backend hands over requests unmerged (README, execute).
    Fix: join the rows with np.concatenate, run once, and split by the rows of each request. If rows have different
    lengths, pad them; if the network takes one row only, remove dynamic_batching.
    """
    is_dynamic = source.configuration.scheduler in ("dynamic_batching", None)
    if not batches(source) or not is_dynamic or is_decoupled(source):
        return
    runs = [event for event in source.events if event.act is Act.RUNS]
    # A file that also runs the whole batch runs single requests for a reason.
    for event in runs if all(event.is_inside for event in runs) else ():
        yield Problem(
            source.at(event.node),
            f"{event.name} runs once for each request, so batching saves nothing. Join the rows, run once and split.",
        )


@rule(
    "M818",
    Severity.WARNING,
    bad=Example(BATCHED, files={"1/model.py": "import time\n" + LOOP.files["1/model.py"].replace(WHERE, SLEEP)}),
    good=LOOP,
)
def nothing_waits_in_execute(source: Source) -> Iterator[Problem]:
    """`execute` sleeps or waits for a download.

    The instance serves nothing else meanwhile, and every request of the batch waits (measured: 3 requests one after the
    other behind a sleep of 50 ms take 150 ms). Reported for time.sleep, requests, httpx and urllib in `execute` and in
    methods that it calls; not in threads or `while` loops, and not if the request says how long.

    Source: python_backend README (execute; Decoupled mode).
    Fix: load in initialize, let the client send the data, or await all downloads of a batch together
    (asyncio.gather); raise instance_group.count if it has to wait.
    """
    yield from _reported(
        source,
        Act.BLOCKS,
        "{name} keeps the instance waiting, and every request with it. Move it out of execute, or wait for all "
        "requests of the batch at once.",
    )


@rule(
    "M820",
    Severity.ERROR,
    bad=model(
        "import numpy as np",
        ARRAYS,
        JOIN,
        'return [pb_utils.InferenceResponse([pb_utils.Tensor("y", joined)]) for request in requests]',
        config=BATCHED,
    ),
    good=SPLIT,
)
def requests_get_their_own_rows(source: Source) -> Iterator[Problem]:
    """Every request is answered with the rows of all requests of its batch.

    Nothing compares the rows of an answer with those of its request: the server sends it with status 200. Each client
    gets the answers of strangers (measured: 40 of 40 clients, each with the rows of its whole batch). A single request
    works.

    Source: server#8407, server#3885; python_backend hands over requests unmerged.
    Fix: split the result by the rows of each request: np.split(rows, np.cumsum(lengths)[:-1]).
    """
    if not batches(source):
        return
    made = [event for event in source.events if event.act is Act.ALL_ROWS]
    lists = ((event, value) for event, value in returned_lists(source) if value.size == REQUESTS)
    repeated = [event for event, value in lists if value.item is not None and holds_all(value.item)]
    for event in [*made, *repeated]:
        yield Problem(
            source.at(event.node),
            "this answers each request with the rows of all requests of its batch. Split the result by the rows of "
            "each request.",
        )


@rule(
    "M828",
    Severity.ERROR,
    bad=looped(read=f"{READ}[0]", answer=ANSWER.replace("x)", "x[None])"), config=BATCHED),
    good=LOOP,
)
def every_row_is_answered(source: Source) -> Iterator[Problem]:
    """A request is answered with one row, made from one of its rows, though it may have several.

    A request may bring up to max_batch_size rows. It gets the answer to the first one, with status 200 (measured: 3
    rows in, 1 row out). Not reported if the file compares the number of rows with 1, or if the model is decoupled.

    Source: server#3885; Triton's model configuration (max_batch_size counts rows).
    Fix: answer every row: leave the first axis as it is, or loop over the rows. If clients send one row only, refuse
    others with an error.
    """
    if not batches(source) or takes_one_row(source) or is_decoupled(source):
        return
    yield from _reported(
        source,
        Act.ONE_ROW,
        "this answer has one row, and a request may have several, which get no answer. Answer every row, or refuse "
        "requests of several rows.",
    )


def _calling(*lines: str, execute: str = "def execute") -> Example:
    """A Python model that calls the model "part"."""
    call = (
        '    call = pb_utils.InferenceRequest(model_name="part", requested_output_names=["y"], '
        'inputs=[pb_utils.get_input_tensor_by_name(request, "x")])'
    )
    code = model("responses, calls = [], []", "for request in requests:", call, *lines, "return responses")
    text = code.files["1/model.py"].replace("def execute", execute)
    return Example(BATCHED, files={"1/model.py": f"import asyncio\n{text}"})


OUTPUTS = "pb_utils.InferenceResponse(answer.output_tensors())"


@rule(
    "M829",
    Severity.WARNING,
    bad=_calling("    answer = call.exec()", f"    responses.append({OUTPUTS})"),
    good=_calling(
        "    calls.append(call.async_exec())",
        "for answer in await asyncio.gather(*calls):",
        f"    responses.append({OUTPUTS})",
        execute="async def execute",
    ),
)
def calls_of_other_models_run_together(source: Source) -> Iterator[Problem]:
    """Another model is called for one request after the other, so it never gets a batch.

    `exec` waits for the answer, and so does `await` at the call of `async_exec`: the next request is sent after it. The
    other model runs each request alone, whatever its batching. Reported in a loop over the requests, also in a method
    that it calls.

    Source: server#7888, server#8615, server#7774; python_backend README (Business Logic Scripting).
    Fix: make execute `async def`, start all calls with async_exec, and await them together:
    `await asyncio.gather(*calls)`.
    """
    if batches(source):
        yield from _reported(
            source,
            Act.CALLS,
            "this waits for another model for one request after the other, so that model never gets a batch. Start "
            "the calls of all requests with async_exec, then await them together with asyncio.gather.",
        )


@rule("M827", Severity.INFO, bad=Example(PYTHON, files=LOOP.files), good=Example(PYTHON, files=SPLIT.files))
def requests_without_a_batcher_could_run_together(source: Source) -> Iterator[Problem]:
    """`execute` answers its requests one by one, and the model has no dynamic_batching.

    `max_batch_size` is above 1, so requests may bring several rows. dynamic_batching alone would put several requests
    into one `execute`, where they would still run one after the other: it saves the calls, not the work.

    Source: python_backend hands over requests unmerged (README, execute).
    Fix: join the rows with np.concatenate, run once, split by the rows of each request, and add dynamic_batching.
    """
    config = source.configuration
    is_alone = config.proto.max_batch_size > 1 and config.scheduler is None and not sends(source)
    if is_alone and not batches(source) and answers_one_by_one(source):
        yield Problem(
            source.at(source.method("execute")),
            "requests are answered one by one. To gain from batches, join their rows, run once and split, and add "
            "dynamic_batching { }.",
        )
