"""B2: whether requests share executions at all, and the sizes that the batcher prefers."""

from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule

# Above it a delay is a latency of its own whatever the model; the usual mistake is a time written in another unit.
LONG_DELAY_US = 100_000
TEXT_NAMES = ("text", "query", "prompt", "sentence", "question", "string", "document", "passage", "utf8")


@rule(
    "B201",
    Severity.WARNING,
    bad=Example("max_batch_size: 8"),
    good=Example("max_batch_size: 8\ndynamic_batching { }"),
)
def requests_share_executions(config: Configuration) -> Iterator[Found]:
    """`max_batch_size` is above 1 and there is no scheduler, so no two requests ever share an execution.

    max_batch_size alone only allows a request to bring several rows. Measured: 100 requests are 100 executions.
    Batching by itself is switched on only where inputs or outputs are left out of the file and the backend completes
    them, so a file written with care gets none.

    Source: server/issues/6937, 8156; core, dynamic_batch_scheduler.cc is not even created.
    Fix: add `dynamic_batching { }`. It adds no delay. A model.py must then take several requests in one `execute`.
    """
    proto = config.proto
    complete = bool(proto.input) and bool(proto.output)
    if proto.max_batch_size > 1 and config.scheduler is None and complete and config.backend != "ensemble":
        yield Found(
            config.at("max_batch_size"),
            f"max_batch_size is {proto.max_batch_size} and there is no dynamic_batching, so every request is an "
            "execution of its own. Add dynamic_batching { }.",
        )


@rule(
    "B202",
    Severity.WARNING,
    bad=Example("max_batch_size: 1\ndynamic_batching { }"),
    good=Example("max_batch_size: 8\ndynamic_batching { }"),
)
def batching_has_room(config: Configuration) -> Iterator[Found]:
    """`dynamic_batching` is set and `max_batch_size` is 0 or 1.

    tritonserver loads it and batches nothing: with 1 a batch is full with its first row, with 0 there is no batch axis
    to join on. A delay has no effect either.

    Source: core, dynamic_batch_scheduler.cc (measured).
    Fix: raise max_batch_size (the graph needs a dynamic first axis), or take dynamic_batching out. What a queue policy
    does still works.
    """
    most = config.proto.max_batch_size
    queue = config.proto.dynamic_batching
    policy = queue.HasField("default_queue_policy") or queue.priority_levels > 0
    completed = not config.proto.input or not config.proto.output or config.backend == "python"
    if config.scheduler == "dynamic_batching" and most in (0, 1) and not policy:
        if most == 0 and completed and not config.document.has("max_batch_size"):
            return  # the backend may set max_batch_size when it completes the file
        yield Found(
            config.at("dynamic_batching"),
            f"max_batch_size is {most}, so dynamic_batching does nothing. Raise max_batch_size, or remove it.",
        )


@rule(
    "B203",
    Severity.ERROR,
    bad=Example("max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }"),
    good=Example("max_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }"),
    refused="dynamic batching preferred size must be <= max batch size",
)
def preferred_sizes_are_possible(config: Configuration) -> Iterator[Found]:
    """A preferred batch size is larger than `max_batch_size`, or not positive.

    tritonserver refuses the model: "dynamic batching preferred size must be <= max batch size", or "must be positive".
    A max_batch_size that the backend completes counts too (4 for onnxruntime).

    Source: core, ValidateModelConfig; onnxruntime_backend/issues/148.
    Fix: raise max_batch_size, or leave the size out: without preferred sizes every batch is as large as it can be.
    """
    most = config.proto.max_batch_size
    for index, size in enumerate(config.proto.dynamic_batching.preferred_batch_size):
        if size <= 0 or size > most > 0:
            yield Found(
                config.at("dynamic_batching", "preferred_batch_size", index),
                f"preferred_batch_size {size} is not between 1 and max_batch_size {most}, so the model cannot load. "
                "Remove it, or raise max_batch_size.",
            )


@rule(
    "B204",
    Severity.WARNING,
    bad=Example("max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 2, 4 ] }"),
    good=Example("max_batch_size: 8\ndynamic_batching { }"),
)
def preferred_sizes_do_not_cap(config: Configuration) -> Iterator[Found]:
    """The largest preferred batch size is below `max_batch_size` and there is no delay: it is a hard cap.

    A preferred size is dispatched at once, so no batch ever grows past the largest one. Measured with 100 requests at
    max_batch_size 32: preferred [4] took 0.84 s in batches of 4, `dynamic_batching { }` 0.19 s. With a delay the cap is
    lifted once the oldest request has waited longer than that.

    Source: core, dynamic_batch_scheduler.cc, GetDynamicBatch; server/issues/8141, 3116.
    Fix: leave preferred_batch_size out (`--fix` does), or name max_batch_size among them. TensorRT models with profiles
    for these sizes may mean it.
    """
    queue, most = config.proto.dynamic_batching, config.proto.max_batch_size
    largest = max(queue.preferred_batch_size, default=0)
    if 0 < largest < most and queue.max_queue_delay_microseconds == 0:
        alone = not config.backend.startswith("tensorrt") and len(_preferred(config)) == 1
        yield Found(
            config.at("dynamic_batching", "preferred_batch_size"),
            f"without a delay no batch grows past the largest preferred size, {largest}, although max_batch_size is "
            f"{most}. Remove preferred_batch_size.",
            fix=config.document.removed("dynamic_batching", "preferred_batch_size") if alone else (),
        )


def _preferred(config: Configuration) -> list[str]:
    value = config.document.value("dynamic_batching")
    fields = (value.fields or ()) if value is not None else ()
    return [field.name for field in fields if field.name == "preferred_batch_size"]


@rule(
    "B205",
    Severity.WARNING,
    bad=Example("max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 8 ] }"),
    good=Example("max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 500 }"),
)
def preferred_sizes_are_for_tensorrt(config: Configuration) -> Iterator[Found]:
    """Preferred batch sizes are set for a backend that has no use for them.

    They send a batch of 4 off while a fifth request is already waiting. TensorRT engines have profiles that run some
    sizes much faster; for every other backend the larger batch is the cheaper one.

    Source: docs/user_guide/batcher.md: "for most models, preferred_batch_size should not be specified".
    Fix: leave preferred_batch_size out, and set a delay if batches should be larger.
    """
    queue = config.proto.dynamic_batching
    capped = max(queue.preferred_batch_size, default=0) < config.proto.max_batch_size
    if queue.preferred_batch_size and not config.backend.startswith("tensorrt"):
        if capped and queue.max_queue_delay_microseconds == 0:
            return  # B204 says worse of it
        yield Found(
            config.at("dynamic_batching", "preferred_batch_size"),
            f"the backend {config.backend or 'here'} gains nothing from preferred sizes, and they send batches off "
            "early. Remove preferred_batch_size.",
        )


@rule(
    "B206",
    Severity.WARNING,
    bad=Example("dynamic_batching { max_queue_delay_microseconds: 500000 }"),
    good=Example("dynamic_batching { max_queue_delay_microseconds: 500 }"),
)
def delay_is_short(config: Configuration) -> Iterator[Found]:
    """The queue delay is as long as a latency target, or over 100 ms.

    It is paid even when an instance is idle: a single request waits the whole delay for others that do not come
    (measured: 50 ms of delay, 52 to 72 ms for one request). A request waits no longer than until its batch is full.
    The unit is microseconds.

    Source: core, dynamic_batch_scheduler.cc; ultralytics/issues/18191 (30 times the latency at low load).
    Fix: begin without a delay: requests that arrive during an execution form the next batch anyway. Then try a fraction
    of one execution's time. `--latency-ms` tells this rule what was promised.
    """
    delay = config.proto.dynamic_batching.max_queue_delay_microseconds
    limit = config.target.latency_us or LONG_DELAY_US
    if delay >= limit:
        yield Found(
            config.at("dynamic_batching", "max_queue_delay_microseconds"),
            f"a request may wait {delay / 1e3:g} ms in the queue even when the model is idle, which is no less than "
            f"{limit / 1e3:g} ms. Write a fraction of one execution's time, in microseconds.",
        )


@rule(
    "B207",
    Severity.WARNING,
    bad=Example(
        'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        "dynamic_batching { max_queue_delay_microseconds: 500 }"
    ),
    good=Example(
        'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        "dynamic_batching { max_queue_delay_microseconds: 500 }"
    ),
)
def delay_buys_rows(config: Configuration) -> Iterator[Found]:
    """A queue delay is set for a model whose requests differ in shape.

    A request of another shape ends the wait and closes the batch, so the delay joins only neighbours of equal shape;
    the last request of every run pays all of it (measured: 200 ms for the last of a burst).

    Source: core, dynamic_batch_scheduler.cc, CompareWithRequiredEqualInputs.
    Fix: set allow_ragged_batch where the model can take it, pad in the client, or leave the delay out.
    """
    queue = config.proto.dynamic_batching
    if queue.max_queue_delay_microseconds == 0 or config.proto.max_batch_size < 2:
        return
    if names := variable_inputs(config):
        yield Found(
            config.at("dynamic_batching", "max_queue_delay_microseconds"),
            f"input {', '.join(names)} may differ in shape between requests, and a request of another shape ends the "
            "wait: the delay joins only neighbours of equal shape. Set allow_ragged_batch or pad in the client.",
        )


def variable_inputs(config: Configuration) -> list[str]:
    """Inputs whose shape the batcher compares between requests: a dim is -1 and they are not ragged."""
    return [tensor.name for tensor in config.proto.input if -1 in tensor.dims and not tensor.allow_ragged_batch]


@rule(
    "B216",
    Severity.WARNING,
    bad=Example('backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\ndynamic_batching { }'),
    good=Example(
        'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        "dynamic_batching { }"
    ),
)
def shapes_do_not_close_batches(config: Configuration) -> Iterator[Found]:
    """An input has a variable size and is not ragged, so a request of another size closes the batch.

    The batcher is strictly first in, first out: it neither sorts nor pads. Measured: 100 requests that cycle over four
    lengths, 30 ms an execution, are 100 executions of one (3.14 s); with allow_ragged_batch they are five (0.19 s).
    Requests of equal size, one after the other, do share executions.

    Source: server/issues/6937, 8156, 3395; core, dynamic_batch_scheduler.cc.
    Fix: set `allow_ragged_batch: true` where the model can take it, pad in the client, or serve one model for each
    range of lengths. Ignore the rule where all clients send one size.
    """
    if config.scheduler != "dynamic_batching" or config.proto.max_batch_size < 2:
        return
    for index, tensor in enumerate(config.proto.input):
        if tensor.name in variable_inputs(config):
            yield Found(
                config.at("input", index, "dims"),
                f'input "{tensor.name}" has dims {list(tensor.dims)} without allow_ragged_batch, so requests of '
                "different size never share an execution. Set allow_ragged_batch: true, or pad in the client.",
            )


@rule(
    "B217",
    Severity.INFO,
    bad=Example('backend: "python"\ninput [ { name: "text" data_type: TYPE_UINT8 dims: [ -1 ] } ]'),
    good=Example('backend: "python"\ninput [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]'),
)
def text_is_sent_as_string(config: Configuration) -> Iterator[Found]:
    """Text arrives as bytes of variable number, whose length keeps requests apart.

    Texts of different length as TYPE_STRING dims [1] have one shape and share an execution (measured: four texts, one
    batch of four); the same bytes as TYPE_UINT8 dims [-1] differ in shape and never do.

    Source: server/issues/7774; core compares shapes, not contents.
    Fix: declare TYPE_STRING with dims [ 1 ].
    """
    for index, tensor in enumerate(config.proto.input):
        bytes_like = config.type_name(tensor.data_type) in ("TYPE_UINT8", "TYPE_INT8") and list(tensor.dims) == [-1]
        named = any(word in tensor.name.lower() for word in TEXT_NAMES)
        if bytes_like and named and not tensor.allow_ragged_batch:
            yield Found(
                config.at("input", index, "data_type"),
                f'input "{tensor.name}" looks like text in bytes: texts of different length have different shapes and '
                "never share an execution. TYPE_STRING with dims [ 1 ] does.",
            )
