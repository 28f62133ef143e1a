"""B2: whether requests share executions, and preferred batch sizes."""

from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelInput

from serve.doctor.configuration import Configuration
from serve.doctor.differences import variable_inputs
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.requests import answers_one_by_one

# From here on a delay is too long for any model; most often the time was written in another unit.
LONG_DELAY_US = 100_000
# Backends whose batches Triton forms; others, of language models above all, batch by themselves.
BATCHED_BY_TRITON = ("onnxruntime", "python", "tensorrt", "pytorch", "tensorflow", "openvino", "dali", "identity")
# Backends that add dynamic_batching themselves to a file without a scheduler, or that batch in another way.
BATCHES_ANYWAY = ("tensorrt", "dali", "tensorflow", "openvino", "tensorrtllm", "vllm")
TEXT_NAMES = ("text", "query", "prompt", "sentence", "question", "string", "document", "passage", "utf8")


@rule("B201", Severity.WARNING, bad="max_batch_size: 8", good="max_batch_size: 8\ndynamic_batching { }")
def requests_share_executions(config: Configuration) -> Iterator[Problem]:
    """`max_batch_size` is above 1 and there is no scheduler, so requests never share an execution.

    max_batch_size alone only lets one request bring several rows, and allow_ragged_batch only lets requests of one
    batch differ in shape. Measured: 100 requests are 100 executions. An ensemble does not batch either: requests of
    different clients are joined by its steps, each with its own dynamic_batching (measured: 8 requests to an ensemble
    are 8 executions of a step without it, 1 with it). onnxruntime adds dynamic_batching only if it also completes the
    inputs or outputs of the file; TensorRT, TensorFlow, OpenVINO and DALI always do, so they are not reported. Nor is a
    model.py that answers its requests one by one: M827 speaks of it. Requests to an AOTInductor package must run alone.

    Source: server/issues/6937, 8156, 7214, 7774; core, dynamic_batch_scheduler.cc is not even created;
    tensorrt_backend, model_state.cc; dali_backend, config_tools.cc.
    Fix: add `dynamic_batching { }`. It adds no delay. A model.py must then take several requests in one `execute`.
    """
    proto = config.proto
    complete = bool(proto.input) and bool(proto.output)
    is_other = config.backend in ("ensemble", *BATCHES_ANYWAY) or config.is_package
    is_other = is_other or (config.source is not None and answers_one_by_one(config.source))
    if proto.max_batch_size > 1 and config.scheduler is None and complete and not is_other:
        yield Problem(
            config.at("max_batch_size"),
            f"max_batch_size is {proto.max_batch_size} and there is no dynamic_batching, so every request is an "
            f"execution of its own{_in_ensembles(config)}. Add dynamic_batching {{ }}.",
            fix=config.document.appended("dynamic_batching { }") if _takes_requests_of_any_length(config) else (),
        )


def _takes_requests_of_any_length(config: Configuration) -> bool:
    """Whether requests can share executions without another change; a model.py may take one request at a time."""
    ragged = any(tensor.allow_ragged_batch for tensor in config.proto.input)
    return ragged and config.backend == "onnxruntime" and not any(True for _ in variable_inputs(config))


def _in_ensembles(config: Configuration) -> str:
    """Names the ensembles of the repository that run this model."""
    ensembles = [
        f'"{model.name}"'
        for model in config.model.repository.models
        if model.config is not None
        and any(step.model_name == config.model.name for step in model.config.proto.ensemble_scheduling.step)
    ]
    return f", also in the ensemble {', '.join(ensembles)}" if ensembles else ""


@rule(
    "B202",
    Severity.WARNING,
    bad="max_batch_size: 1\ndynamic_batching { }",
    good="max_batch_size: 8\ndynamic_batching { }",
)
def batching_has_room(config: Configuration) -> Iterator[Problem]:
    """`dynamic_batching` or `allow_ragged_batch` is set and `max_batch_size` leaves no room for a batch.

    tritonserver loads the model and batches nothing: with max_batch_size 1 a batch is full with its first row, with 0
    there is no batch axis. A queue delay and allow_ragged_batch have no effect either.

    Source: core, dynamic_batch_scheduler.cc (measured: 4 requests, 4 executions).
    Fix: raise max_batch_size (the graph needs a dynamic first axis), or remove the setting. A queue policy still works.
    """
    most = config.proto.max_batch_size
    if most in (0, 1) and (settings := _without_effect(config)):
        yield Problem(
            config.at(*settings[0]),
            f"max_batch_size is {most}, so {' and '.join(str(path[-1]) for path in settings)} cannot take effect. "
            "Raise max_batch_size, or remove the setting.",
        )


def is_full_with_one_row(config: Configuration) -> bool:
    """Whether no batch has two rows, so that none waits for another request; False if the size may be completed."""
    proto = config.proto
    return proto.max_batch_size == 1 or (proto.max_batch_size == 0 and not _may_be_completed(config))


def _may_be_completed(config: Configuration) -> bool:
    """Whether the backend may set max_batch_size when it completes the file."""
    proto = config.proto
    is_open = proto.max_batch_size == 0 and not config.document.has("max_batch_size")
    return is_open and (not (proto.input and proto.output) or config.backend == "python")


def _without_effect(config: Configuration) -> list[tuple[str | int, ...]]:
    """Paths of the settings that only act on batches."""
    proto, queue = config.proto, config.proto.dynamic_batching
    complete = proto.input and proto.output
    settings: list[tuple[str | int, ...]] = []
    policy = queue.HasField("default_queue_policy") or queue.priority_levels > 0
    if config.scheduler == "dynamic_batching" and not policy and not _may_be_completed(config):
        settings.append(("dynamic_batching",))
    if proto.max_batch_size == 0 and complete and config.backend in BATCHED_BY_TRITON:
        ragged = [index for index, tensor in enumerate(proto.input) if tensor.allow_ragged_batch]
        settings += [("input", index, "allow_ragged_batch") for index in ragged[:1]]
    return settings


@rule(
    "B203",
    Severity.ERROR,
    bad="max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }",
    good="max_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }",
    refused="dynamic batching preferred size must be <= max batch size",
)
def preferred_sizes_are_possible(config: Configuration) -> Iterator[Problem]:
    """A preferred batch size is larger than `max_batch_size`, or not positive.

    tritonserver refuses the model: "dynamic batching preferred size must be <= max batch size", or "must be positive".
    A max_batch_size that the backend completes counts too (4 for onnxruntime).

    Source: core, ValidateModelConfig; onnxruntime_backend/issues/148.
    Fix: raise max_batch_size, or remove the size: without preferred sizes every batch is as large as possible.
    """
    most = config.proto.max_batch_size
    for index, size in enumerate(config.proto.dynamic_batching.preferred_batch_size):
        if size <= 0 or (size > most and not _may_be_completed(config)):
            yield Problem(
                config.at("dynamic_batching", "preferred_batch_size", index),
                f"preferred_batch_size {size} is not between 1 and max_batch_size {most}, so the model cannot load. "
                "Remove it, or raise max_batch_size.",
            )


@rule(
    "B204",
    Severity.WARNING,
    bad="max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 2, 4 ] }",
    good="max_batch_size: 8\ndynamic_batching { }",
)
def preferred_sizes_do_not_limit_batches(config: Configuration) -> Iterator[Problem]:
    """Preferred batch sizes make batches smaller.

    A batch of a preferred size leaves at once, even if more requests wait. Without a queue delay no batch grows beyond
    the largest preferred size. Measured with 100 requests at max_batch_size 32: preferred [4] took 0.84 s in batches of
    4, `dynamic_batching { }` 0.19 s. With a delay the limit ends when the oldest request has waited that long. The
    maximum as the only preferred size is what Triton assumes without any. Only TensorRT engines have profiles that run
    some sizes much faster; for them a limit is reported only.

    Source: core, dynamic_batch_scheduler.cc, GetDynamicBatch; server/issues/8141, 3116; docs/user_guide/batcher.md:
    "for most models, preferred_batch_size should not be specified".
    Fix: remove preferred_batch_size (`--fix` does), and set a delay if batches should be larger.
    """
    queue, most = config.proto.dynamic_batching, config.proto.max_batch_size
    largest, smallest = max(queue.preferred_batch_size, default=0), min(queue.preferred_batch_size, default=0)
    # A batch of the maximum is full. B203 reports a larger size.
    if largest == 0 or largest > most or smallest == most:
        return
    at = config.at("dynamic_batching", "preferred_batch_size")
    has_profiles = config.backend.startswith("tensorrt")
    if largest < most and queue.max_queue_delay_microseconds == 0:
        removable = not has_profiles and len(_preferred(config)) == 1
        yield Problem(
            at,
            f"without a delay no batch grows beyond the largest preferred size, {largest}, although max_batch_size is "
            f"{most}. Remove preferred_batch_size.",
            fix=config.document.removed("dynamic_batching", "preferred_batch_size") if removable else (),
        )
    elif not has_profiles:
        yield Problem(
            at,
            "a batch of a preferred size leaves at once although more requests wait, and only TensorRT gains from "
            "preferred sizes. Remove preferred_batch_size.",
        )


def _preferred(config: Configuration) -> list[str]:
    value = config.document.value("dynamic_batching")
    fields = (value.fields or ()) if value is not None else ()
    return [field.name for field in fields if field.name == "preferred_batch_size"]


@rule(
    "B206",
    Severity.WARNING,
    bad="dynamic_batching { max_queue_delay_microseconds: 500000 }",
    good="dynamic_batching { max_queue_delay_microseconds: 500 }",
)
def delay_is_short(config: Configuration) -> Iterator[Problem]:
    """The queue delay is as long as the latency target, or 100 ms and more.

    A lone request waits for the full delay even if an instance is idle (measured: with a delay of 50 ms one request
    takes 52 to 72 ms). The wait ends early only when the batch is full or has a preferred size; if that is one row, at
    once. The unit is microseconds.

    Source: core, dynamic_batch_scheduler.cc; ultralytics/issues/18191 (30 times the latency at low load).
    Fix: start without a delay: requests that arrive during an execution form the next batch anyway. Then try a fraction
    of the service time. `--latency-ms` gives this rule the latency target.
    """
    queue = config.proto.dynamic_batching
    delay, limit = queue.max_queue_delay_microseconds, config.target.latency_us or LONG_DELAY_US
    leaves_at_once = is_full_with_one_row(config) or 1 in queue.preferred_batch_size
    if delay >= limit and not leaves_at_once:
        yield Problem(
            config.at("dynamic_batching", "max_queue_delay_microseconds"),
            f"a lone request waits {delay / 1e3:g} ms in the queue even if the model is idle; the limit is "
            f"{limit / 1e3:g} ms. Write a fraction of the service time, in microseconds.",
        )


@rule(
    "B216",
    Severity.WARNING,
    bad='backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\ndynamic_batching { }',
    good=(
        'backend: "python"\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
        "dynamic_batching { }"
    ),
)
def shapes_do_not_close_batches(config: Configuration) -> Iterator[Problem]:
    """An input has a variable size and is not ragged, so a request of another size closes the batch.

    The batcher takes requests in the order of their arrival; it neither sorts nor pads. Requests of equal size, one
    after the other, do share executions. Measured: 100 requests that cycle over four lengths, 30 ms per execution, are
    100 executions (3.14 s); with allow_ragged_batch they are five (0.19 s). One such input is enough: token ids and
    their mask must both be ragged (measured: 4 requests of 4 lengths are 4 executions with one of them ragged, 1 with
    both). A queue delay does not help: another size ends the wait, and the last request waits for all of it. Texts sent
    as TYPE_STRING with dims [ 1 ] have one shape whatever their length; the same bytes as TYPE_UINT8 with dims [ -1 ]
    do not (measured: four texts are one execution, or four).

    Source: server/issues/6937, 8156, 3395, 7774; core, dynamic_batch_scheduler.cc, CompareWithRequiredEqualInputs.
    Fix: a model.py can take ragged inputs (`allow_ragged_batch: true`); for a graph, `python -m export.add MODEL
    --variable-length` lets the server pad. Or pad in the client, send text as TYPE_STRING, or write the size if it is
    always the same. Ignore the rule if all clients send one size.
    """
    if config.scheduler != "dynamic_batching" or config.proto.max_batch_size < 2:
        return
    open_inputs = [(index, tensor) for index, tensor in variable_inputs(config) if not tensor.is_shape_tensor]
    if open_inputs:
        names = ", ".join(f'"{tensor.name}" with dims {list(tensor.dims)}' for _, tensor in open_inputs)
        yield Problem(
            config.at("input", open_inputs[0][0], "dims"),
            f"input {names} has no allow_ragged_batch, so requests of different size never share an execution"
            f"{_although(config)}. {_remedy(config, [tensor for _, tensor in open_inputs])}",
        )


def _although(config: Configuration) -> str:
    """What else in the file shows that they should."""
    ragged = [tensor.name for tensor in config.proto.input if tensor.allow_ragged_batch and -1 in tensor.dims]
    if ragged:
        return f', although "{ragged[0]}" is ragged'
    if config.proto.dynamic_batching.max_queue_delay_microseconds > 0:
        return ", and the queue delay joins only neighbours of equal size"
    return ""


def _remedy(config: Configuration, tensors: Sequence[ModelInput]) -> str:
    if any(_may_be_text(config, tensor) for tensor in tensors):
        return "If it is text, declare TYPE_STRING with dims [ 1 ]; texts of any length then share executions."
    if config.backend in ("python", "dali") or any(config.proto.batch_input):
        return "Set allow_ragged_batch: true, or pad in the client."
    if config.backend in ("onnxruntime", "pytorch"):
        return "Pad: in the server (python -m export.add --variable-length), or in the client. Or write the size."
    return "Pad in the client, or write the size if it is always the same."


def _may_be_text(config: Configuration, tensor: ModelInput) -> bool:
    is_bytes = config.type_name(tensor.data_type) in ("TYPE_UINT8", "TYPE_INT8") and list(tensor.dims) == [-1]
    return is_bytes and any(word in tensor.name.lower() for word in TEXT_NAMES)


OPTIONAL = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] '
MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        scale = pb_utils.get_input_tensor_by_name(request, "scale")
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x if scale is None else x * scale.as_numpy())])
"""


def _scaled(rest: str) -> Example:
    return Example(f'backend: "python"\n{OPTIONAL}{rest} }} ]\ndynamic_batching {{ }}', files={"1/model.py": MODEL})


@rule("B220", Severity.INFO, bad=_scaled(" optional: true"), good=_scaled(""))
def requests_have_the_same_inputs(config: Configuration) -> Iterator[Problem]:
    """An input is optional, so requests with it and without it never share an execution.

    The batcher joins only requests with the same inputs, and takes them in the order of their arrival. Measured: 8
    requests of which every second has the optional input are 8 executions; 4 without and then 4 with it are 2.

    Source: core, dynamic_batch_scheduler.cc, CompareWithRequiredEqualInputs.
    Fix: make it required and let clients send a default value, if both kinds of request are common.
    """
    batches = config.scheduler == "dynamic_batching" and config.proto.max_batch_size > 1
    # G109: onnxruntime refuses such an input.
    if batches and config.backend in BATCHED_BY_TRITON and config.backend != "onnxruntime":
        for index, tensor in enumerate(config.proto.input):
            if tensor.optional:
                yield Problem(
                    config.at("input", index, "optional"),
                    f'input "{tensor.name}" is optional, and requests with it and without it never share an '
                    "execution. If both are common make it required, with a default value that clients send.",
                )
