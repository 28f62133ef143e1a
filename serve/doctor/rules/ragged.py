"""R3: ragged inputs, and whether they can have an effect."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInput

from serve.doctor.configuration import Configuration
from serve.doctor.differences import differences
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

RAGGED = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]'
OUTPUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]'
PYTHON = 'backend: "python"'
ROW_OUT = 'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]'


def ragged_inputs(config: Configuration) -> list[tuple[int, ModelInput]]:
    """Index and declaration of every input with allow_ragged_batch.

    None for an ensemble, whose steps batch, and none if the backend pads: the graph then takes rows of one length.
    """
    if config.backend == "ensemble" or config.pads:
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
    "R303",
    Severity.WARNING,
    bad=(
        f'{PYTHON}\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] allow_ragged_batch: true }} ]\n{OUTPUT}\n'
        "dynamic_batching { }"
    ),
    good=f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}",
)
def ragged_needs_a_variable_dimension(config: Configuration) -> Iterator[Problem]:
    """An input is ragged and all its dims are fixed, so its requests cannot differ.

    tritonserver refuses requests of another shape before they reach the batcher, ragged or not: "unexpected shape for
    input 'x' ... Expected [-1,2], got [1,3]". The onnxruntime backend also hands the graph all rows as one flat tensor
    of rank 1 instead of [rows, 2].

    Source: core, infer_request.cc (Normalize); backend, backend_input_collector.cc.
    Fix: write -1 for the dimension that differs between requests, or remove allow_ragged_batch.
    """
    for index, tensor in ragged_inputs(config):
        if tensor.dims and -1 not in tensor.dims:
            yield Problem(
                config.at("input", index, "allow_ragged_batch"),
                f'input "{tensor.name}" is ragged and its dims {list(tensor.dims)} are fixed, so requests of '
                "another shape are refused. Write -1 for the dimension that differs, or remove allow_ragged_batch.",
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
def the_graph_takes_a_flat_tensor(config: Configuration) -> Iterator[Problem]:
    """A ragged input of the ONNX graph is not one flat tensor of rank 1.

    onnxruntime's backend joins the elements of all requests into one tensor of rank 1; the length of each request goes
    into `batch_input` tensors. A graph exported for padded batches ([batch, length]) is refused at load: "configuration
    expects model provides input with shape [-1]  for ragged input".

    Source: onnxruntime_backend, ValidateInputs; onnxruntime_backend#192, server#3839, server#5872.
    Fix: export the graph with an input of rank 1 and the offsets as further inputs, or remove allow_ragged_batch.
    """
    return differences(config, "R305")


@rule(
    "R306",
    Severity.WARNING,
    bad=_pairs("dims: [ 2 ]", ""),
    good=_pairs(
        "dims: [ -1, 2 ]",
        'batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]',
    ),
)
def flat_outputs_are_scattered(config: Configuration) -> Iterator[Problem]:
    """An output of a ragged graph has one row per element, and no `batch_output` splits it between the requests.

    Without `batch_output` the first dimension of an output counts as the batch axis, with one row per row of the batch.
    An output as long as the ragged input has more rows. The C++ backend gives each request the next few of them and
    drops the rest, so every answer but the first is wrong, without an error. This project's backend fails the requests.

    Source: backend, backend_output_responder.cc; onnxruntime_backend ReadOutputTensors; server#4470.
    Fix: add batch_output { target_name, kind: BATCH_SCATTER_WITH_INPUT_SHAPE, source_input }.
    """
    if config.graph is None or not ragged_inputs(config):
        return
    names = {tensor.name: index for index, tensor in ragged_inputs(config)}
    flat = {
        dim: value.name
        for value in config.graph.proto.graph.input
        if value.name in names and len(value.type.tensor_type.shape.dim) == 1  # R305 reports other ranks
        for dim in _first(value)
    }
    scattered = {target for entry in config.proto.batch_output for target in entry.target_name}
    graph_outputs = {value.name: value for value in config.graph.proto.graph.output}
    for index, tensor in enumerate(config.proto.output):
        value = graph_outputs.get(tensor.name)
        source = next((flat[dim] for dim in _first(value) if dim in flat), None) if value is not None else None
        if source is not None and tensor.name not in scattered:
            yield Problem(
                config.at("output", index),
                f'output "{tensor.name}" has one row per element of the ragged input "{source}", and is split as '
                "if it had one per request: answers are wrong or fail. Add batch_output "
                f'{{ target_name: "{tensor.name}" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "{source}" }}.',
            )


def _first(value: object) -> list[str]:
    """The name of a graph tensor's first dimension, when it has one."""
    shape = value.type.tensor_type.shape  # type: ignore[attr-defined]
    return [shape.dim[0].dim_param] if shape.dim and shape.dim[0].dim_param else []


@rule(
    "R307",
    Severity.WARNING,
    bad=(
        f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}\nbatch_input [ {{ kind: BATCH_ELEMENT_COUNT "
        'target_name: "LENGTH" data_type: TYPE_INT32 source_input: "x" } ]'
    ),
    good=f"{PYTHON}\n{RAGGED}\n{ROW_OUT}\ndynamic_batching {{ }}",
)
def the_python_backend_gets_no_batch_inputs(config: Configuration) -> Iterator[Problem]:
    """A Python model has `batch_input` or `batch_output`, which have no effect.

    Only the C++ backends make batch inputs and split batch outputs. Python's `execute` gets the requests separately,
    each with its own shape, and never the target tensors. Measured: 4 requests of a model with one batch input have 4
    tensors in total.

    Source: python_backend does not use BackendInputCollector; server#3984, server#6740.
    Fix: remove the sections. Join the arrays of the requests in model.py (np.concatenate of the flattened arrays and
    np.cumsum of their sizes), and split the result the same way.
    """
    if config.backend != "python":
        return
    for section in ("batch_input", "batch_output"):
        if getattr(config.proto, section):
            yield Problem(
                config.at(section),
                f"{section} has no effect in the Python backend: execute gets the requests separately and without "
                "these tensors. Remove it and join the requests in model.py.",
            )
