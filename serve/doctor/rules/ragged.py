"""R3: ragged inputs, the tensors that tritonserver makes for a ragged batch, and how outputs are split."""

import math
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import BatchInput, DataType, ModelInput

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


TENSORS = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    'batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]\n'
    "dynamic_batching { }\n"
)
GRAPH = {
    "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\n'
    "example (float[n] x, int32[r] LENGTH) => (float[n] y) { y = Identity(x) }"
}
FLAT = {"1/model.onnx": GRAPH["1/model.onnx"].replace(", int32[r] LENGTH", "")}


def entry_text(kind: str = "BATCH_ELEMENT_COUNT", rest: str = 'target_name: "LENGTH" data_type: TYPE_INT32') -> str:
    """A batch_input of the examples."""
    source = "" if "source_input" in rest else ' source_input: "x"'
    return f"batch_input [ {{ kind: {kind} {rest}{source} }} ]"


def example(entry: str = "") -> Example:
    """A ragged model with one batch input, LENGTH."""
    return Example(TENSORS + (entry or entry_text()), files=GRAPH)


def kind_name(entry: BatchInput) -> str:
    """What the kind is called."""
    return str(BatchInput.Kind.Name(entry.kind))


@rule(
    "R312",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTH" data_type: TYPE_FP32')),
    good=example(),
    refused="model provides TYPE_INT32",
)
def the_graph_takes_the_batch_inputs(config: Configuration) -> Iterator[Problem]:
    """A batch input has another name, data type or rank in the graph than in the configuration.

    The C++ onnxruntime backend does not compare batch inputs: the model is READY and its first request fails with
    onnxruntime's "Unexpected input data type". This project's backend refuses it at load.

    Source: onnxruntime_backend, ValidateInputs skips batch inputs; server#3741.
    Fix: write the graph's type, which must be INT32 or FP32; an INT64 input needs a cast inside the graph.
    """
    return differences(config, "R312")


PER_REQUEST = (
    BatchInput.BATCH_ELEMENT_COUNT,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO,
)
PER_ROW = (BatchInput.BATCH_ITEM_SHAPE, BatchInput.BATCH_ITEM_SHAPE_FLATTEN)
EXACT_FP32 = 2**24
"""The first whole number after which FP32 has gaps."""
ASSUMED_LENGTH = 4096
"""The size assumed for each -1."""


def _sources(config: Configuration) -> Iterator[tuple[int, BatchInput, ModelInput]]:
    """Every batch input whose source is declared, with that source."""
    inputs = {tensor.name: tensor for tensor in config.proto.input}
    for index, entry in enumerate(config.proto.batch_input):
        if len(entry.source_input) == 1 and entry.source_input[0] in inputs:
            yield index, entry, inputs[entry.source_input[0]]


@rule(
    "R321",
    Severity.WARNING,
    bad=Example(f"{TENSORS.replace(' allow_ragged_batch: true', '')}{entry_text()}", files=GRAPH),
    good=example(),
)
def the_source_is_ragged(config: Configuration) -> Iterator[Problem]:
    """A batch input counts the elements of an input that is not ragged.

    The model loads. But only requests of one shape share a batch then, so all counts are equal and repeat the shape of
    the input.

    Source: core, ValidateBatchIO accepts any input; backend, backend_input_collector.cc.
    Fix: set allow_ragged_batch on the source, or remove the batch_input.
    """
    for index, entry, source in _sources(config):
        if not source.allow_ragged_batch:
            yield Problem(
                config.at("batch_input", index, "source_input"),
                f'source_input "{source.name}" is not ragged, so all requests of a batch have its shape and '
                f'{kind_name(entry)} only repeats it. Set allow_ragged_batch on "{source.name}".',
            )


@rule(
    "R322",
    Severity.WARNING,
    bad=Example(
        "max_batch_size: 32\n"
        + TENSORS.replace("[ -1 ]", "[ -1, 256 ]")
        + entry_text("BATCH_ACCUMULATED_ELEMENT_COUNT", 'target_name: "LENGTH" data_type: TYPE_FP32'),
        files={"1/model.onnx": GRAPH["1/model.onnx"].replace("int32", "float")},
    ),
    good=Example(
        "max_batch_size: 32\n"
        + TENSORS.replace("[ -1 ]", "[ -1, 256 ]")
        + entry_text("BATCH_ACCUMULATED_ELEMENT_COUNT"),
        files=GRAPH,
    ),
)
def counts_are_exact(config: Configuration) -> Iterator[Problem]:
    """Element counts are FP32, which is not exact above 16,777,216.

    Larger offsets are rounded, so the backend splits requests at the wrong element without a warning (this project's
    backend refuses such a batch). With dims [-1, 256] and 32 requests per batch 2,048 steps each are enough. The rule
    assumes 4,096 for each -1.

    Source: backend, backend_input_collector.cc converts the counts to float; server#3741.
    Fix: write TYPE_INT32 and export the graph with an INT32 input.
    """
    for index, entry, source in _sources(config):
        if entry.data_type != DataType.TYPE_FP32 or entry.kind not in PER_REQUEST:
            continue
        rows = 1 if entry.kind == BatchInput.BATCH_ELEMENT_COUNT else max(config.proto.max_batch_size, 1)
        largest = rows * math.prod(ASSUMED_LENGTH if dim < 0 else dim for dim in source.dims)
        if largest > EXACT_FP32:
            yield Problem(
                config.at("batch_input", index, "data_type"),
                f'{kind_name(entry)} of "{source.name}" can reach {largest:,} and is TYPE_FP32, which is exact '
                f"up to {EXACT_FP32:,} only: above it requests are split at wrong places. Write TYPE_INT32.",
            )


@rule(
    "R323",
    Severity.WARNING,
    bad=Example(
        f"{TENSORS}{entry_text()}\n{entry_text('BATCH_ITEM_SHAPE').replace('LENGTH', 'SHAPES')}",
        files={"1/model.onnx": GRAPH["1/model.onnx"].replace("LENGTH", "LENGTH, int32[m, 1] SHAPES")},
    ),
    good=example(),
)
def counts_are_per_request_or_per_row(config: Configuration) -> Iterator[Problem]:
    """One input has batch inputs that count per request and others that count per row.

    BATCH_ELEMENT_COUNT and the two accumulated kinds have one entry per request, BATCH_ITEM_SHAPE and
    BATCH_ITEM_SHAPE_FLATTEN one per batch row. If a client sends two rows in one request, the tensors differ in length.
    Measured: requests [1, 3], [2, 2], [1, 5] give counts [3, 4, 5] and shapes [3], [2], [2], [5].

    Source: backend, backend_input_collector.cc; server#3741.
    Fix: use kinds that count the same; BATCH_ITEM_SHAPE is right for any number of rows.
    """
    if config.proto.max_batch_size < 2:
        return
    first: dict[str, BatchInput] = {}
    for index, entry, source in _sources(config):
        if entry.kind not in (*PER_REQUEST, *PER_ROW):
            continue
        other = first.setdefault(source.name, entry)
        if (entry.kind in PER_ROW) != (other.kind in PER_ROW):
            yield Problem(
                config.at("batch_input", index, "kind"),
                f'{kind_name(entry)} and {kind_name(other)} of "{source.name}" count per request and per row, or the '
                "other way round, so a request of two rows makes them differ in length. Use kinds that count the "
                "same.",
            )


@rule(
    "R332",
    Severity.ERROR,
    bad=Example(TENSORS.replace('target_name: "y" ', ""), files=FLAT),
    good=Example(TENSORS, files=FLAT),
)
def batch_outputs_have_a_target(config: Configuration) -> Iterator[Problem]:
    """A batch output has no `target_name`, which crashes the server.

    tritonserver 2.51 reads the first name of an empty list when it loads the model, and the process crashes with all
    other models (measured: the load request ends with a closed socket, the log with a stack trace).

    Source: the crash itself, on 2.51; core's ValidateBatchIO accepts an empty list of targets.
    Fix: write the name of the output to split.
    """
    for index, entry in enumerate(config.proto.batch_output):
        if not entry.target_name:
            yield Problem(
                config.at("batch_output", index),
                "a batch_output has no target_name, and tritonserver crashes while it loads the model. "
                "Name the output to split.",
            )
