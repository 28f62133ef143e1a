"""G1: fields that every input and output must have."""

from collections.abc import Iterator

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import rule

PYTHON = 'backend: "python"\n'
X = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]'


@rule(
    "G115",
    Severity.ERROR,
    bad=PYTHON + 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 0, 2 ] } ]',
    good=PYTHON + 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]',
    refused="dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
)
def sizes_are_possible(config: Configuration) -> Iterator[Problem]:
    """A dim is 0 or below -1.

    With -1 a request of size 0 is executed.

    Source: core, model_config_utils.cc, ValidateIOShape.
    Fix: write the size, or -1 for a variable size.
    """
    for kind, index, tensor in config.tensors():
        for axis, size in enumerate(tensor.dims):
            if size < 1 and size != -1:
                yield Problem(
                    config.at(kind, index, "dims", axis),
                    f'{kind} "{tensor.name}" has a dim of {size}, so the model cannot load. Write a size of 1 or '
                    "more, or -1 for a variable size.",
                )


@rule(
    "G116",
    Severity.ERROR,
    bad=PYTHON + 'input [ { name: "x" dims: [ 2 ] } ]',
    good=PYTHON + X,
    refused="must specify 'data_type'",
)
def tensors_are_complete(config: Configuration) -> Iterator[Problem]:
    """An input or an output lacks its name, its data type or its dims.

    tritonserver refuses the model: "model input must specify 'data_type'" (or 'name', or 'dims'). The onnxruntime
    backend completes missing inputs and outputs, but not a part of one. A model.py completes what its
    auto_complete_config adds, TensorRT everything. Other backends are not checked. A scalar has dims [ 1 ].

    Source: core, model_config_utils.cc, ValidateModelInput and ValidateModelOutput.
    Fix: write the missing field, or remove the whole input if the backend knows it.
    """
    for kind, index, tensor in config.tensors():
        required = ("name", "data_type", "dims") if _is_not_completed(config) else ("name",)
        missing = [field for field in required if not getattr(tensor, field)]
        if missing:
            yield Problem(
                config.at(kind, index),
                f'{kind} "{tensor.name}" has no {" and no ".join(missing)}, so the model cannot load. Add it.',
            )


def _is_not_completed(config: Configuration) -> bool:
    """Whether the backend does not complete a tensor that lacks a field."""
    if config.backend == "python":
        return config.source is not None and config.source.method("auto_complete_config") is None
    return config.backend in ("onnxruntime", "pytorch")


@rule(
    "G117",
    Severity.ERROR,
    bad=PYTHON + 'max_batch_size: 0\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]',
    good=PYTHON + 'max_batch_size: 8\ninput [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]',
    refused="cannot have empty reshape for non-batching model",
)
def empty_shapes_have_a_batch_axis(config: Configuration) -> Iterator[Problem]:
    """`reshape` is empty in a model that does not batch.

    With max_batch_size above 0 the batch axis remains. Without it the shape is empty, and tritonserver refuses the
    model: "cannot have empty reshape for non-batching model".

    Source: core, model_config_utils.cc, ValidateIOShape.
    Fix: remove `reshape` and use dims [ 1 ], or set max_batch_size.
    """
    if config.proto.max_batch_size != 0:
        return
    for kind, index, tensor in config.tensors():
        if tensor.HasField("reshape") and not tensor.reshape.shape:
            yield Problem(
                config.at(kind, index, "reshape"),
                f'{kind} "{tensor.name}" has an empty reshape and max_batch_size is 0, so the model cannot '
                "load. Remove reshape.",
            )


@rule(
    "G118",
    Severity.ERROR,
    bad=PYTHON + "max_batch_size: -1",
    good=PYTHON + "max_batch_size: 0",
    refused="'max_batch_size' must be non-negative value",
)
def batch_size_is_not_negative(config: Configuration) -> Iterator[Problem]:
    """`max_batch_size` is negative.

    There is no value for "any size"; write the largest batch that fits into memory.

    Source: core, model_config_utils.cc, ValidateModelConfig.
    Fix: write 0 for a model without a batch axis, else the largest batch size.
    """
    if config.proto.max_batch_size < 0:
        yield Problem(
            config.at("max_batch_size"),
            f"max_batch_size is {config.proto.max_batch_size}, so the model cannot load. Write 0, or the largest "
            "batch size.",
        )


@rule(
    "G121",
    Severity.ERROR,
    bad='input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] is_shape_tensor: true } ]',
    good=X,
    refused="shape tensors are only supported for TensorRT platform",
)
def shape_tensors_are_for_tensorrt(config: Configuration) -> Iterator[Problem]:
    """`is_shape_tensor` is set for a backend other than TensorRT.

    An ONNX graph that computes with a tensor of sizes takes it as any other input.

    Source: core, model_config_utils.cc, ValidateModelInput.
    Fix: remove is_shape_tensor (`--fix` does).
    """
    for kind, index, tensor in config.tensors():
        if tensor.is_shape_tensor and config.backend not in ("tensorrt", "", "ensemble"):
            yield Problem(
                config.at(kind, index, "is_shape_tensor"),
                f'{kind} "{tensor.name}" is a shape tensor, which only TensorRT has: the model cannot load. Remove '
                "is_shape_tensor.",
                fix=config.document.removed(kind, index, "is_shape_tensor"),
            )
