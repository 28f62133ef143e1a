"""R3: `batch_output`, outputs that are split by the shape of an input."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.batch_inputs import unknown_sources, wrong_source_counts

TENSORS = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]\n'
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    "dynamic_batching { }\n"
)
GRAPH = {
    "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\nexample (float[n] x) => (float[n] y) { y = Identity(x) }'
}


SCATTER = 'kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x"'
PAIRS = TENSORS.replace("output [", 'output [ { name: "pairs" data_type: TYPE_FP32 dims: [ -1, 2 ] },')
PAIRS_GRAPH = {
    "1/model.onnx": '<ir_version: 8, opset_import: ["" : 17]>\nexample (float[n] x) => '
    "(float[n] y, float[n, 2] pairs) <int64[1] last = {1}>\n"
    "{ y = Identity(x)\ncolumn = Unsqueeze(x, last)\npairs = Concat<axis = 1>(column, column) }"
}


def _example(targets: str = 'target_name: "y"', sources: str = 'source_input: "x"', tensors: str = TENSORS) -> Example:
    return Example(
        f"{tensors}batch_output [ {{ {targets} kind: BATCH_SCATTER_WITH_INPUT_SHAPE {sources} }} ]", files=GRAPH
    )


@rule(
    "R331",
    Severity.ERROR,
    bad=_example(targets='target_name: "z"'),
    good=_example(),
    refused="unknown target output name 'z'",
)
def batch_outputs_have_a_known_target(config: Configuration) -> Iterator[Problem]:
    """A batch output names an output that is not declared.

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: write the name of one of the outputs.
    """
    names = [tensor.name for tensor in config.proto.output]
    for index, entry in enumerate(config.proto.batch_output):
        for number, target in enumerate(entry.target_name):
            if target not in names and names:
                yield Problem(
                    config.at("batch_output", index, "target_name", number),
                    f'target_name "{target}" is not an output of this model, which has {", ".join(names)}: it cannot '
                    "load. Write one of those names.",
                )


@rule("R332", Severity.ERROR, bad=_example(targets=""), good=_example())
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


@rule(
    "R333",
    Severity.ERROR,
    bad=_example(sources='source_input: "q"'),
    good=_example(),
    refused="unknown source input name 'q'",
)
def batch_outputs_have_a_known_source(config: Configuration) -> Iterator[Problem]:
    """A batch output takes its shape from an input that is not declared.

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: write the name of one of the inputs.
    """
    yield from unknown_sources(config, "batch_output")


@rule(
    "R334",
    Severity.ERROR,
    bad=_example(sources=""),
    good=_example(),
    refused="batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0",
)
def batch_outputs_have_one_source(config: Configuration) -> Iterator[Problem]:
    """A batch output has no source or several.

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: name exactly one source_input.
    """
    yield from wrong_source_counts(config, "batch_output", "whose shape the output takes")


@rule(
    "R338",
    Severity.ERROR,
    bad=_example(targets='target_name: [ "y", "y" ]'),
    good=_example(),
    refused="can only be specified once",
)
def each_output_is_cut_once(config: Configuration) -> Iterator[Problem]:
    """An output is the target of two batch outputs.

    Twice in one `batch_output` is refused: "target output name 'y' can only be specified once". In two batch outputs it
    loads (measured), and the output is split twice.

    Source: core, model_config_utils.cc (ValidateBatchIO).
    Fix: name each output once.
    """
    seen: set[str] = set()
    for index, entry in enumerate(config.proto.batch_output):
        for number, target in enumerate(entry.target_name):
            if target in seen:
                yield Problem(
                    config.at("batch_output", index, "target_name", number),
                    f'output "{target}" is the target of a batch_output already. Name each output once.',
                )
            seen.add(target)


@rule(
    "R335",
    Severity.ERROR,
    bad=_example(tensors=TENSORS.replace("[ -1 ] }", "[ -1, -1 ] }")),
    good=_example(),
    refused="which has only 2 dimensions",
)
def scattered_dimensions_have_a_counterpart(config: Configuration) -> Iterator[Problem]:
    """An output has a -1 at an index at which the source of its batch output has no dimension.

    Each -1 of the output takes the size of the source's dimension at the same index. Past the source's last dimension
    the C++ backend reads beyond the end of the shape; this project's backend refuses the model.

    Source: backend, backend_output_responder.cc.
    Fix: write the size of that dimension, or name a source that has it.
    """
    inputs = {tensor.name: tensor for tensor in config.proto.input}
    outputs = {tensor.name: (index, tensor) for index, tensor in enumerate(config.proto.output)}
    for entry in config.proto.batch_output:
        source = inputs.get(entry.source_input[0]) if len(entry.source_input) == 1 else None
        if source is None or source.HasField("reshape"):
            continue
        for index, tensor in [outputs[name] for name in entry.target_name if name in outputs]:
            dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            for axis, dim in enumerate(dims):
                if dim == -1 and axis >= len(source.dims):
                    yield Problem(
                        config.at("output", index, "dims", axis),
                        f'dims {list(dims)} of "{tensor.name}" have a -1 at index {axis}, which takes the size of '
                        f'that dimension of "{source.name}", but its dims are {list(source.dims)}: the backend reads '
                        "past them. Write the size.",
                    )


@rule(
    "R336",
    Severity.WARNING,
    bad=Example(f'{PAIRS}batch_output [ {{ target_name: [ "y", "pairs" ] {SCATTER} }} ]', files=PAIRS_GRAPH),
    good=Example(
        f'{PAIRS}batch_output [ {{ target_name: "y" {SCATTER} }}, {{ target_name: "pairs" {SCATTER} }} ]',
        files=PAIRS_GRAPH,
    ),
)
def one_target_for_each_batch_output(config: Configuration) -> Iterator[Problem]:
    """A batch output has several targets of different dims.

    The C++ backends give every target of one `batch_output` the dims of the first, so the others get a wrong shape.
    This project's backend gives each target its own.

    Source: backend, BatchOutput takes the shape of its first target.
    Fix: write one batch_output for each target.
    """
    if config.backend == "python":
        return
    outputs = {tensor.name: tensor for tensor in config.proto.output}
    for index, entry in enumerate(config.proto.batch_output):
        shapes = {tuple(outputs[name].dims) for name in entry.target_name if name in outputs}
        if len(shapes) > 1:
            yield Problem(
                config.at("batch_output", index, "target_name"),
                f"a batch_output has {len(entry.target_name)} targets of different dims, and all get those of "
                f'"{entry.target_name[0]}". Write one batch_output for each.',
            )


@rule(
    "R337",
    Severity.WARNING,
    bad=Example(
        f'{TENSORS.replace("FP32", "STRING")}batch_output [ {{ target_name: "y" {SCATTER} }} ]',
        files={"1/model.onnx": GRAPH["1/model.onnx"].replace("float", "string")},
    ),
    good=_example(),
)
def scattered_outputs_have_a_fixed_size_type(config: Configuration) -> Iterator[Problem]:
    """A batch output has type TYPE_STRING, which the C++ backends cannot split.

    They split the buffer by the byte size of an element, and strings have none. This project's backend can, so the
    model works differently in NVIDIA's image.

    Source: backend, backend_output_responder.cc (ProcessBatchOutput).
    Fix: return numbers, or one string per row without batch_output.
    """
    outputs = {tensor.name: (index, tensor) for index, tensor in enumerate(config.proto.output)}
    for entry in config.proto.batch_output:
        for index, tensor in [outputs[name] for name in entry.target_name if name in outputs]:
            if tensor.data_type == DataType.TYPE_STRING:
                yield Problem(
                    config.at("output", index, "data_type"),
                    f'output "{tensor.name}" is TYPE_STRING, whose elements have no size by which batch_output could '
                    "split them. Return numbers, or one string per row without batch_output.",
                )
