"""R3: which inputs are ragged, and whether that can have any effect."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInput

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule

RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
OUTPUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]'
PYTHON = 'backend: "python"'
ROW_OUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]'


# Others, of language models above all, batch by themselves.
BATCHED_BY_TRITON = ("onnxruntime", "python", "tensorrt", "pytorch", "tensorflow", "openvino", "dali", "identity")


def ragged_inputs(config: Configuration) -> list[tuple[int, ModelInput]]:
    """Index and declaration of every input with allow_ragged_batch; none for an ensemble, whose steps batch."""
    if config.backend == "ensemble":
        return []
    return [(index, tensor) for index, tensor in enumerate(config.proto.input) if tensor.allow_ragged_batch]


def _pairs(dims: str, scatter: str) -> Example:
    """A graph with one row of two values for each element of its ragged input."""
    return Example(
        f'{RAGGED}\noutput [ {{ name: "y" data_type: TYPE_FP32 {dims} }} ]\n{scatter}\ndynamic_batching {{ }}',
        files={
            "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\nexample (float[n] x) => (float[n, 2] y) '
            "<int64[1] last = {1}>\n{ column = Unsqueeze(x, last)\ny = Concat<axis = 1>(column, column) }"
        },
    )


@rule(
    "R301",
    Severity.WARNING,
    bad=Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}"),
    good=Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
)
def ragged_needs_the_dynamic_batcher(config: Configuration) -> Iterator[Found]:
    """An input is ragged, and no dynamic batcher is there to make use of it.

    `allow_ragged_batch` only lifts a rule of the dynamic batcher, that the requests of a batch have equal shapes.
    Without `dynamic_batching` every request is an execution of its own, and tritonserver loads the model without a
    word. Measured: 4 requests, 4 executions; with `dynamic_batching { }` they are 1.

    Source: core, dynamic_batch_scheduler.cc is the only reader of the field; server#7774.
    Fix: add dynamic_batching { }.
    """
    complete = config.proto.input and config.proto.output
    batched = config.backend in BATCHED_BY_TRITON and config.proto.max_batch_size > 0
    if config.scheduler is None and batched and complete:
        for index, tensor in ragged_inputs(config)[:1]:
            yield Found(
                config.at("input", index, "allow_ragged_batch"),
                f'input "{tensor.name}" is ragged, but without dynamic_batching each request is executed alone. '
                "Add dynamic_batching { }.",
                fix=config.document.appended("dynamic_batching { }"),
            )


@rule(
    "R302",
    Severity.WARNING,
    bad=Example(f"{PYTHON}\nmax_batch_size: 0\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
    good=Example(f"{PYTHON}\nmax_batch_size: 8\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
)
def ragged_needs_a_batch(config: Configuration) -> Iterator[Found]:
    """An input is ragged, and max_batch_size is 0, so requests are never joined.

    With `max_batch_size: 0` tritonserver never batches, whatever else the file says, and it loads the model without a
    word. Measured: 4 requests, 4 executions, with and without `dynamic_batching`.

    Source: core, ModelConfig documentation; the field is not validated at all.
    Fix: set max_batch_size to the number of rows that one execution may have; requests then carry a batch dimension.
    """
    complete = config.proto.input and config.proto.output
    if config.proto.max_batch_size == 0 and config.backend in BATCHED_BY_TRITON and complete:
        for index, tensor in ragged_inputs(config)[:1]:
            yield Found(
                config.at("input", index, "allow_ragged_batch"),
                f'input "{tensor.name}" is ragged, but max_batch_size is 0, so no two requests share an execution. '
                "Set max_batch_size, or remove allow_ragged_batch.",
            )


@rule(
    "R303",
    Severity.WARNING,
    bad=Example(
        f'{PYTHON}\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] allow_ragged_batch: true }} ]\n{OUTPUT}\n'
        "dynamic_batching { }"
    ),
    good=Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
)
def ragged_needs_a_variable_dimension(config: Configuration) -> Iterator[Found]:
    """An input is ragged, and all its dims are fixed, so its requests cannot differ.

    tritonserver refuses requests of another shape before they reach the batcher, ragged or not: "unexpected shape for
    input 'x' ... Expected [-1,2], got [1,3]". On the onnxruntime backend the flag is not even harmless: the graph then
    gets all rows as one flat tensor of rank 1 instead of [rows, 2].

    Source: core, infer_request.cc (Normalize); backend, backend_input_collector.cc.
    Fix: write -1 for the dimension that differs between requests, or remove allow_ragged_batch.
    """
    for index, tensor in ragged_inputs(config):
        if tensor.dims and -1 not in tensor.dims:
            yield Found(
                config.at("input", index, "allow_ragged_batch"),
                f'input "{tensor.name}" is ragged, but its dims {list(tensor.dims)} are all fixed, so requests of '
                "another shape are refused. Write -1 for the dimension that differs, or remove allow_ragged_batch.",
            )


@rule(
    "R304",
    Severity.WARNING,
    bad=Example(
        f'{PYTHON}\n{RAGGED}\ninput [ {{ name: "mask" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n{ROW_OUT}\n'
        "dynamic_batching { }"
    ),
    good=Example(
        f'{PYTHON}\n{RAGGED}\ninput [ {{ name: "mask" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]'
        f"\n{ROW_OUT}\ndynamic_batching {{ }}"
    ),
)
def every_variable_input_is_ragged(config: Configuration) -> Iterator[Found]:
    """One input is ragged, another one of variable shape is not, so it still closes the batches.

    The dynamic batcher compares the shapes of every input that has a -1 and is not ragged. Inputs whose lengths go
    together (token ids and their mask) must therefore all be ragged: one that is not keeps requests of different
    length apart. Measured: 4 requests of 4 lengths, 4 executions with only the first input ragged, 1 with both.

    Source: core, dynamic_batch_scheduler.cc (enforce_equal_shape_tensors); server#6937, server#8156.
    Fix: set allow_ragged_batch on the other input as well, or give it fixed dims.
    """
    ragged = [tensor for _, tensor in ragged_inputs(config) if -1 in tensor.dims]
    if config.scheduler != "dynamic_batching" or config.proto.max_batch_size < 2 or not ragged:
        return
    for index, tensor in enumerate(config.proto.input):
        if -1 in tensor.dims and not tensor.allow_ragged_batch and not tensor.is_shape_tensor:
            yield Found(
                config.at("input", index),
                f'input "{tensor.name}" has dims {list(tensor.dims)} and is not ragged as "{ragged[0].name}" is, so '
                "requests that differ in its shape still do not share a batch. Set allow_ragged_batch on both.",
            )


@rule(
    "R305",
    Severity.ERROR,
    bad=Example(
        f"{RAGGED}\ndynamic_batching {{ }}\n{ROW_OUT}",
        files={
            "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\n'
            "example (float[b, n] x) => (float[b, n] y) { y = Identity(x) }"
        },
    ),
    good=Example(
        f'{RAGGED}\n{ROW_OUT}\nbatch_output [ {{ target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
        'source_input: "x" } ]\ndynamic_batching { }',
        files={
            "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\n'
            "example (float[n] x) => (float[n] y) { y = Identity(x) }"
        },
    ),
    refused="for ragged input",
)
def the_graph_takes_a_flat_tensor(config: Configuration) -> Iterator[Found]:
    """A ragged input of the ONNX graph is not one flat tensor of rank 1.

    onnxruntime's backend puts the elements of all requests one after the other and hands the graph one tensor of rank
    1; the length of each request goes into `batch_input` tensors. A graph exported for padded batches ([batch, length])
    is refused at load: "configuration expects model provides input with shape [-1]  for ragged input".

    Source: onnxruntime_backend, ValidateInputs; onnxruntime_backend#192, server#3839, server#5872.
    Fix: export the graph with a rank-1 input and the offsets it needs as further inputs, or remove allow_ragged_batch.
    """
    graph = config.graph
    for index, tensor in ragged_inputs(config):
        found = graph.signature.inputs.get(tensor.name) if graph is not None else None
        if found is not None and found.shape != (-1,):
            yield Found(
                config.at("input", index, "allow_ragged_batch"),
                f'input "{tensor.name}" is ragged, so the graph must take it as [-1], and it takes '
                f"{list(found.shape)}: the model cannot load. Export a graph with a flat input and offsets, or remove "
                "allow_ragged_batch.",
            )


@rule(
    "R306",
    Severity.WARNING,
    bad=_pairs("dims: [ 2 ]", ""),
    good=_pairs(
        "dims: [ -1, 2 ]",
        'batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]',
    ),
)
def flat_outputs_are_scattered(config: Configuration) -> Iterator[Found]:
    """An output of a ragged graph has one row per element, and no `batch_output` gives each request its own.

    Without `batch_output` the first dimension of an output is taken as the batch, one row per batch row. An output as
    long as the ragged input has more rows than that: the C++ backend cuts the first ones off for each request and drops
    the rest, so every answer but the first is wrong, in silence. The backend of this project fails the requests.

    Source: backend, backend_output_responder.cc; onnxruntime_backend ReadOutputTensors; server#4470.
    Fix: add batch_output { target_name, kind: BATCH_SCATTER_WITH_INPUT_SHAPE, source_input }.
    """
    if config.graph is None or not ragged_inputs(config):
        return
    names = {tensor.name: index for index, tensor in ragged_inputs(config)}
    flat = {dim: value.name for value in config.graph.proto.graph.input if value.name in names for dim in _first(value)}
    scattered = {target for entry in config.proto.batch_output for target in entry.target_name}
    graph_outputs = {value.name: value for value in config.graph.proto.graph.output}
    for index, tensor in enumerate(config.proto.output):
        value = graph_outputs.get(tensor.name)
        source = next((flat[dim] for dim in _first(value) if dim in flat), None) if value is not None else None
        if source is not None and tensor.name not in scattered:
            yield Found(
                config.at("output", index),
                f'output "{tensor.name}" has as many rows as the ragged input "{source}" has elements, and is cut as '
                "if it had one per request: answers get mixed up or fail. Add batch_output "
                f'{{ target_name: "{tensor.name}" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "{source}" }}.',
            )


def _first(value: object) -> list[str]:
    """The name of a graph tensor's first dimension, when it has one."""
    shape = value.type.tensor_type.shape  # type: ignore[attr-defined]
    return [shape.dim[0].dim_param] if shape.dim and shape.dim[0].dim_param else []


@rule(
    "R307",
    Severity.WARNING,
    bad=Example(
        f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}\nbatch_input [ {{ kind: BATCH_ELEMENT_COUNT "
        'target_name: "LENGTH" data_type: TYPE_INT32 source_input: "x" } ]'
    ),
    good=Example(f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}"),
)
def the_python_backend_gets_no_batch_inputs(config: Configuration) -> Iterator[Found]:
    """`batch_input` or `batch_output` of a Python model, for which tritonserver does nothing.

    The collector that makes batch inputs and cuts batch outputs belongs to the C++ backends. Python's `execute` gets
    the requests one by one, each with its own shape, and never sees the target tensors. Measured: 4 requests with one
    declared batch input have 4 tensors in all.

    Source: python_backend does not use BackendInputCollector; server#3984, server#6740.
    Fix: remove the sections; in model.py join the arrays of the requests yourself (np.concatenate of the flattened
    arrays and np.cumsum of their sizes), and cut the result the same way.
    """
    if config.backend != "python":
        return
    for section in ("batch_input", "batch_output"):
        if getattr(config.proto, section):
            yield Found(
                config.at(section),
                f"{section} has no effect on the Python backend: execute gets the requests one by one and never sees "
                "these tensors. Remove it and join the requests in model.py.",
            )
