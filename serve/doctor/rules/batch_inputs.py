"""R3: `batch_input`, the tensors that tritonserver makes for a ragged batch."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import BatchInput, DataType

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule

TYPES = (DataType.TYPE_INT32, DataType.TYPE_FP32)
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


def unknown_sources(config: Configuration, field: str) -> Iterator[Problem]:
    """The sources of `batch_input` or `batch_output` that are not declared."""
    names = [tensor.name for tensor in config.proto.input]
    for index, entry in enumerate(getattr(config.proto, field)):
        for number, source in enumerate(entry.source_input):
            if source not in names and names:
                yield Problem(
                    config.at(field, index, "source_input", number),
                    f'source_input "{source}" is not an input of this model, which has {", ".join(names)}: it cannot '
                    "load. Write one of those names.",
                )


def wrong_source_counts(config: Configuration, field: str, purpose: str) -> Iterator[Problem]:
    """Entries of `batch_input` or `batch_output` with no source or several."""
    for index, entry in enumerate(getattr(config.proto, field)):
        if (count := len(entry.source_input)) != 1:
            yield Problem(
                config.at(field, index, "source_input"),
                f"a {field} has {count} source_input, and exactly one is needed: the model cannot load. "
                f"Name the input {purpose}.",
            )


@rule(
    "R311",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTH" data_type: TYPE_INT64')),
    good=example(),
    refused="batch input data type must be TYPE_INT32 or TYPE_FP32",
)
def batch_inputs_are_int32_or_fp32(config: Configuration) -> Iterator[Problem]:
    """A batch input has a data type other than TYPE_INT32 and TYPE_FP32, or none.

    tritonserver refuses the model: "batch input data type must be TYPE_INT32 or TYPE_FP32", and without a type
    "unexpected batch input data type 'TYPE_INVALID'".

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: write TYPE_INT32, and cast inside the graph if it needs INT64.
    """
    for index, entry in enumerate(config.proto.batch_input):
        if entry.data_type not in TYPES:
            yield Problem(
                config.at("batch_input", index, "data_type"),
                f"a batch_input has data type {DataType.Name(entry.data_type)}, and only TYPE_INT32 and TYPE_FP32 are "
                "possible: the model cannot load. Write TYPE_INT32, and cast inside the graph.",
            )


@rule(
    "R312",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTH" data_type: TYPE_FP32')),
    good=example(),
    refused="model provides TYPE_INT32",
)
def the_graph_takes_the_batch_inputs_type(config: Configuration) -> Iterator[Problem]:
    """A batch input has another data type in the graph than in the configuration.

    The C++ onnxruntime backend compares neither names nor types of batch inputs: the model is READY and its first
    request fails with onnxruntime's "Unexpected input data type". This project's backend refuses it at load.

    Source: onnxruntime_backend, ValidateInputs skips batch inputs; server#3741.
    Fix: write the graph's type, which must be INT32 or FP32; an INT64 input needs a cast inside the graph.
    """
    inputs = config.graph.signature.inputs if config.graph is not None else {}
    for index, entry in enumerate(config.proto.batch_input):
        for target in entry.target_name:
            tensor = inputs.get(target)
            wanted = DataType.Name(entry.data_type)
            if tensor is not None and entry.data_type in TYPES and tensor.type != wanted:
                yield Problem(
                    config.at("batch_input", index, "data_type"),
                    f'batch input "{target}" is {wanted} here and the graph takes {tensor.type}, so requests fail. '
                    "Write the graph's type, or export the graph with an INT32 input.",
                )


@rule(
    "R313",
    Severity.ERROR,
    bad=example(entry_text(rest="data_type: TYPE_INT32")),
    good=example(),
    refused="has no target_name",
)
def batch_inputs_have_a_target(config: Configuration) -> Iterator[Problem]:
    """A batch input has no `target_name`.

    tritonserver loads the model (measured with a Python model) and computes the tensor for each batch, but no input of
    the graph gets it. This project's backend refuses the model.

    Source: core does not check the field (ValidateBatchIO).
    Fix: write the name of the graph's input that takes the tensor.
    """
    for index, entry in enumerate(config.proto.batch_input):
        if not any(entry.target_name):
            yield Problem(
                config.at("batch_input", index),
                f"a batch_input of kind {kind_name(entry)} has no target_name, so the graph never gets it. "
                "Name the input of the graph that takes it.",
            )


@rule(
    "R314",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTHS" data_type: TYPE_INT32')),
    good=example(),
    refused="is not an input of the graph",
)
def batch_inputs_are_in_the_graph(config: Configuration) -> Iterator[Problem]:
    """A batch input is for an input that the graph does not have.

    The C++ onnxruntime backend only counts inputs: the model is READY, and its first request fails with "Invalid Feed
    Input Name". This project's backend refuses the model.

    Source: onnxruntime_backend, ValidateInputs; onnxruntime_backend#192.
    Fix: write the name in the graph; exporters rename tensors unless they get the names.
    """
    graph = config.graph
    if graph is None:
        return
    for index, entry in enumerate(config.proto.batch_input):
        for number, target in enumerate(entry.target_name):
            if target and target not in graph.signature.inputs:
                yield Problem(
                    config.at("batch_input", index, "target_name", number),
                    f'batch input "{target}" is not an input of the graph, which has '
                    f"{', '.join(graph.signature.inputs)}: requests fail. Write one of those names.",
                )


@rule(
    "R315",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "x" data_type: TYPE_INT32')),
    good=example(),
    refused="is declared twice",
)
def batch_inputs_have_their_own_name(config: Configuration) -> Iterator[Problem]:
    """A batch input has the name of an input or of another batch input.

    tritonserver loads the model (measured with a Python model), and the order decides which of the two tensors the
    graph gets. This project's backend refuses the model.

    Source: core does not check the field (ValidateBatchIO).
    Fix: give each batch input a name of its own.
    """
    taken = {tensor.name for tensor in config.proto.input}
    for index, entry in enumerate(config.proto.batch_input):
        for number, target in enumerate(entry.target_name):
            if target in taken:
                yield Problem(
                    config.at("batch_input", index, "target_name", number),
                    f'"{target}" is the name of another input or batch input, so the graph gets one of two tensors. '
                    "Clients do not send batch inputs: rename one, or remove it.",
                )
            taken.add(target)


@rule(
    "R316",
    Severity.ERROR,
    bad=Example(
        TENSORS + entry_text(rest='target_name: [ "LENGTH", "AGAIN" ] data_type: TYPE_INT32'),
        files={"1/model.onnx": GRAPH["1/model.onnx"].replace("LENGTH", "LENGTH, int32[r] AGAIN")},
    ),
    good=Example(
        TENSORS + entry_text() + "\n" + entry_text().replace("LENGTH", "AGAIN"),
        files={"1/model.onnx": GRAPH["1/model.onnx"].replace("LENGTH", "LENGTH, int32[r] AGAIN")},
    ),
    refused="model provides 3",
)
def one_target_for_each_batch_input(config: Configuration) -> Iterator[Problem]:
    """A batch input of an onnxruntime model has several targets.

    onnxruntime's backend counts each `batch_input` as one input of the graph, so the count is wrong and it refuses the
    model: "configuration expects 2 inputs, model provides 3".

    Source: onnxruntime_backend, ValidateInputs.
    Fix: write one batch_input for each target.
    """
    if config.backend != "onnxruntime":
        return
    for index, entry in enumerate(config.proto.batch_input):
        if len(entry.target_name) > 1:
            yield Problem(
                config.at("batch_input", index, "target_name"),
                f"a batch_input has {len(entry.target_name)} targets, and onnxruntime's backend counts it as one "
                "input: the model cannot load. Write one batch_input for each target.",
            )


@rule(
    "R317",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTH" data_type: TYPE_INT32 source_input: "q"')),
    good=example(),
    refused="unknown source input name 'q'",
)
def batch_inputs_have_a_known_source(config: Configuration) -> Iterator[Problem]:
    """A batch input counts the elements of an input that is not declared.

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: write the name of one of the inputs.
    """
    yield from unknown_sources(config, "batch_input")


@rule(
    "R318",
    Severity.ERROR,
    bad=example(entry_text(rest='target_name: "LENGTH" data_type: TYPE_INT32 source_input: [ "x", "x" ]')),
    good=example(),
    refused="batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 2",
)
def batch_inputs_have_one_source(config: Configuration) -> Iterator[Problem]:
    """A batch input has no source or several.

    Source: core, model_config_utils.cc (ValidateBatchIO); true of all six kinds.
    Fix: name exactly one source_input.
    """
    yield from wrong_source_counts(config, "batch_input", "whose elements are counted")
