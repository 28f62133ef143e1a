"""W6: `model_warmup`: samples that are skipped, are refused, or do not warm the model."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelInput, ModelInstanceGroup, ModelWarmup

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Edit, Problem, Severity
from serve.doctor.rule import rule


def sample(batch: str = "batch_size: 1", data: str = "zero_data: true", rest: str = "", **changed: str) -> str:
    """A model_warmup with one sample for the input x of the examples."""
    name, kind = changed.get("name", "x"), changed.get("kind", "TYPE_FP32")
    tensor = f"data_type: {kind} dims: [ {changed.get('dims', '2')} ] {data}"
    return f'model_warmup [ {{ name: "zeros" {batch} inputs {{ key: "{name}" value {{ {tensor} }} }} {rest} }} ]'


def samples(config: Configuration) -> Iterator[tuple[int, ModelWarmup]]:
    """Index and sample of every sample that is not skipped; none for an ensemble."""
    if config.backend != "ensemble":
        yield from ((index, warmup) for index, warmup in enumerate(config.proto.model_warmup) if warmup.batch_size > 0)


def tensors(config: Configuration) -> Iterator[tuple[int, str, ModelWarmup.Input, ModelInput | None]]:
    """Index of the sample, name, tensor and input of every tensor of those samples."""
    inputs = {tensor.name: tensor for tensor in config.proto.input}
    for index, warmup in samples(config):
        for name, tensor in sorted(warmup.inputs.items()):
            yield index, name, tensor, inputs.get(name)


@rule("W601", Severity.WARNING, bad=sample(batch=""), good=sample())
def samples_have_a_batch_size(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample has no `batch_size`, so it is skipped.

    The default is 0, and tritonserver skips such a sample; only the verbose log says so. Measured: 0 executions after
    load, where batch_size 1 makes 1. A model with `max_batch_size: 0` needs batch_size 1 as well.

    Source: core, backend_model_instance.cc (GenerateWarmupData).
    Fix: write batch_size: 1, or the batch size to warm.
    """
    for index, warmup in enumerate(config.proto.model_warmup):
        if warmup.batch_size == 0:
            value = config.document.value("model_warmup", index)
            missing = not config.document.has("model_warmup", index, "batch_size")
            edit = (Edit(start=value.start + 1, end=value.start + 1, text=" batch_size: 1"),) if value else ()
            yield Problem(
                config.at("model_warmup", index),
                f'warm-up sample "{warmup.name}" has no batch_size, so tritonserver skips it. Write batch_size: 1.',
                fix=edit if missing else (),
            )


@rule("W604", Severity.ERROR, bad=sample(name="z"), good=sample(), refused="Please provide all required input")
def samples_have_every_input(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample lacks an input of the model.

    The model is refused: "expected 1 inputs but got 0 inputs ... missing required input(s) ['x']".

    Source: core, infer_request.cc (Normalize).
    Fix: add the input to the sample's `inputs`; its key is the input's name.
    """
    required = [tensor.name for tensor in config.proto.input if not tensor.optional]
    for index, warmup in samples(config):
        if missing := [name for name in required if name not in warmup.inputs]:
            yield Problem(
                config.at("model_warmup", index),
                f'warm-up sample "{warmup.name}" has no input {", ".join(missing)}: the model cannot load. Add it.',
            )


@rule(
    "W605",
    Severity.ERROR,
    bad=sample(rest='inputs { key: "z" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }'),
    good=sample(),
)
def samples_have_known_inputs(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample fills an input that the model does not declare.

    The sample reaches the backend unchecked. onnxruntime fails: the model is refused, "failed to run warmup sample", or
    tritonserver 2.51 aborts, as it sometimes does when a warm-up fails (measured). A Python model loads, and its
    `execute` gets a tensor that no request has.

    Source: core, backend_model_instance.cc (GenerateWarmupData does not compare the names).
    Fix: correct the name, or remove it.
    """
    if not config.proto.input:
        return
    controls = {control.name for control in config.proto.sequence_batching.control_input}
    states = {state.input_name for state in config.proto.sequence_batching.state}
    required = {tensor.name for tensor in config.proto.input if not tensor.optional}
    complete = {index for index, warmup in samples(config) if required.issubset(warmup.inputs)}
    for index, name, _, declared in tensors(config):
        # Of an incomplete sample W604 reports the name that is missing.
        if index in complete and declared is None and name not in controls | states:
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample fills "{name}", which is not an input of this model, so backends fail. Correct '
                "the name, or remove it.",
            )


@rule("W606", Severity.ERROR, bad=sample(dims="3"), good=sample(), refused="unexpected shape for input")
def samples_fit_the_inputs(config: Configuration) -> Iterator[Problem]:
    """A tensor of a warm-up sample does not fit the input.

    The model is refused: "unexpected shape for input 'x' ... Expected [-1,2], got [1,3]". The dims of a sample are
    without the batch axis.

    Source: core, infer_request.cc (Normalize).
    Fix: write the input's dims, with a size for each -1.
    """
    for index, name, tensor, declared in tensors(config):
        if declared is None or any(dim < 0 for dim in tensor.dims):
            continue
        fits = len(tensor.dims) == len(declared.dims) and all(
            wanted in (-1, dim) for dim, wanted in zip(tensor.dims, declared.dims, strict=True)
        )
        if declared.dims and not fits:
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" has dims {list(tensor.dims)}, and the input takes '
                f"{list(declared.dims)}: the model cannot load. Write those dims, with a size for each -1.",
            )


@rule(
    "W607",
    Severity.ERROR,
    bad=sample(kind="TYPE_INT32"),
    good=sample(),
    refused="inference input 'x' data-type is 'INT32', but model 'example' expects 'FP32'",
)
def samples_have_the_inputs_type(config: Configuration) -> Iterator[Problem]:
    """A tensor of a warm-up sample and the input have different data types.

    Source: core, infer_request.cc (Normalize).
    Fix: write the input's data type.
    """
    for index, name, tensor, declared in tensors(config):
        if declared is not None and tensor.data_type != declared.data_type:
            actual, wanted = (DataType.Name(kind) for kind in (tensor.data_type, declared.data_type))
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" is {actual}, and the input is {wanted}: the model cannot load. '
                f"Write {wanted}.",
            )


@rule("W608", Severity.ERROR, bad=sample(batch="batch_size: 9"), good=sample(batch="batch_size: 8"))
def samples_are_possible_batches(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample has more rows than `max_batch_size`.

    The model is refused: "failed to run warmup sample 'zeros': batch size 9 for 'example_0_0', max allowed is 8", or
    tritonserver 2.51 aborts, as it sometimes does when a warm-up fails (measured).

    Source: python_backend and onnxruntime_backend check the rows of an execution.
    Fix: write at most max_batch_size.
    """
    most = config.proto.max_batch_size
    for index, warmup in samples(config):
        if most > 0 and warmup.batch_size > most:
            yield Problem(
                config.at("model_warmup", index, "batch_size"),
                f'warm-up sample "{warmup.name}" has batch_size {warmup.batch_size}, and max_batch_size is {most}: '
                f"the model cannot load. Write at most {most}.",
            )


@rule(
    "W609",
    Severity.ERROR,
    bad=f"max_batch_size: 0\n{sample(batch='batch_size: 2')}",
    good=f"max_batch_size: 0\n{sample(batch='batch_size: 1')}",
)
def a_sample_of_a_model_without_batches_is_one(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample has several requests, and the model does not batch.

    With `max_batch_size: 0` the backend gets one request at a time, but a warm-up sends batch_size requests at once.
    The model is refused: "failed to run warmup sample 'zeros': batch size 2 ... max allowed is 0", or tritonserver 2.51
    aborts with all other models (measured: 3 of 4 times without an instance group).

    Source: core, backend_model_instance.cc (WarmUp).
    Fix: write batch_size: 1.
    """
    for index, warmup in samples(config):
        if config.proto.max_batch_size == 0 and warmup.batch_size > 1:
            yield Problem(
                config.at("model_warmup", index, "batch_size"),
                f'warm-up sample "{warmup.name}" has batch_size {warmup.batch_size} and the model max_batch_size 0: '
                "it cannot load, or crashes the server. Write batch_size: 1.",
                fix=config.document.replaced("1", "model_warmup", index, "batch_size"),
            )


def _on_gpu(config: Configuration) -> bool:
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.proto.instance_group)


@rule(
    "W612",
    Severity.INFO,
    bad=(
        'instance_group [ { kind: KIND_GPU count: 1 } ]\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    ),
    good=(
        'instance_group [ { kind: KIND_GPU count: 1 } ]\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        f'output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n{sample(batch="batch_size: 8")}'
    ),
)
def variable_shapes_are_warmed(config: Configuration) -> Iterator[Problem]:
    """A GPU model has inputs of variable shape and no warm-up for the largest batch.

    The first execution of each shape allocates memory and chooses kernels. The largest batch comes first under load,
    when that pause costs most.

    Source: server documentation, model_configuration.md (Model Warmup); onnxruntime#12120.
    Fix: add a sample with batch_size = max_batch_size and the largest shape that clients send.
    """
    variable = any(-1 in tensor.dims for tensor in config.proto.input)
    largest = max((warmup.batch_size for warmup in config.proto.model_warmup), default=0)
    if _on_gpu(config) and variable and largest < max(config.proto.max_batch_size, 1):
        yield Problem(
            config.at("model_warmup"),
            f"a GPU model with variable shapes is warmed with batches of up to {largest} of "
            f"{max(config.proto.max_batch_size, 1)}, so the first large batch under load is slow. Add a sample with "
            "the largest batch and shape.",
        )


@rule(
    "W613",
    Severity.INFO,
    bad=f'backend: "python"\n{sample(batch="batch_size: 4")}',
    good=f'backend: "python"\n{sample(batch="batch_size: 1")}',
)
def a_sample_is_several_requests(config: Configuration) -> Iterator[Problem]:
    """A warm-up sample with batch_size N reaches a Python model as N requests of one row.

    `execute` gets a list of N requests with shape [1, ...], not one of shape [N, ...]. A model.py that runs each
    request separately is warmed for one row only. Measured: a sample with batch_size 4 is one execution of 4 requests.

    Source: core, backend_model_instance.cc (WarmUp).
    Fix: join the requests in model.py, or call the model with the largest batch at the end of `initialize`.
    """
    if config.backend != "python":
        return
    for index, warmup in samples(config):
        if 1 < warmup.batch_size <= config.proto.max_batch_size:
            yield Problem(
                config.at("model_warmup", index, "batch_size"),
                f'warm-up sample "{warmup.name}" is {warmup.batch_size} requests of one row each for execute, not one '
                f"of {warmup.batch_size} rows. It warms a batch only if model.py joins requests.",
            )
