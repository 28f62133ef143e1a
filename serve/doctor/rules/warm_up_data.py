"""W6: the data of a warm-up sample."""

import math
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import DataType, ModelWarmup

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import Example, rule
from serve.doctor.rules.warm_up import sample, tensors

ELEMENT_BYTES = {
    DataType.TYPE_BOOL: 1,
    DataType.TYPE_UINT8: 1,
    DataType.TYPE_INT8: 1,
    DataType.TYPE_UINT16: 2,
    DataType.TYPE_INT16: 2,
    DataType.TYPE_FP16: 2,
    DataType.TYPE_BF16: 2,
    DataType.TYPE_UINT32: 4,
    DataType.TYPE_INT32: 4,
    DataType.TYPE_FP32: 4,
    DataType.TYPE_UINT64: 8,
    DataType.TYPE_INT64: 8,
    DataType.TYPE_FP64: 8,
}


@rule(
    "W602",
    Severity.ERROR,
    bad=sample(dims="-1"),
    good=sample(),
    refused="warmup setting expects all variable-size dimensions are specified for input 'x'",
)
def samples_have_a_shape(config: Configuration) -> Iterator[Problem]:
    """A tensor of a warm-up sample has a -1 in its dims.

    Source: core, backend_model_instance.cc (GenerateWarmupData).
    Fix: write a size that clients send, with one sample for each important size.
    """
    for index, name, tensor, _ in tensors(config):
        if any(dim < 0 for dim in tensor.dims):
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" has dims {list(tensor.dims)}, but a sample needs fixed sizes: the '
                "model cannot load. Write sizes that clients send.",
            )


@rule(
    "W603",
    Severity.ERROR,
    bad=sample(data=""),
    good=sample(),
    refused="warmup setting expects input 'x' to have input_data_type set",
)
def samples_have_data(config: Configuration) -> Iterator[Problem]:
    """A tensor of a warm-up sample has no data.

    Source: core, backend_model_instance.cc (GenerateWarmupData).
    Fix: write zero_data: true, random_data: true or input_data_file: "file in the folder warmup".
    """
    for index, name, tensor, _ in tensors(config):
        if tensor.WhichOneof("input_data_type") is None:
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" has none of zero_data, random_data and input_data_file: the model '
                "cannot load. Write one of them.",
            )


def _file(config: Configuration, tensor: ModelWarmup.Input) -> Path | None:
    name = tensor.input_data_file
    return config.model.folder / "warmup" / name if name else None


@rule(
    "W610",
    Severity.ERROR,
    bad=sample(data='input_data_file: "row"'),
    good=Example(sample(data='input_data_file: "row"'), files={"warmup/row": "8 bytes."}),
    refused="failed to open text file for read",
)
def sample_files_are_there(config: Configuration) -> Iterator[Problem]:
    """The file of a warm-up sample is missing.

    Source: core, backend_model_instance.cc (GenerateWarmupData).
    Fix: put the raw bytes of one item into the folder `warmup` of the model.
    """
    for index, name, tensor, _ in tensors(config):
        path = _file(config, tensor)
        if path is not None and not path.is_file():
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" reads warmup/{tensor.input_data_file}, which does not exist: the '
                "model cannot load. Put the raw bytes there.",
            )


@rule(
    "W611",
    Severity.ERROR,
    bad=Example(sample(data='input_data_file: "row"'), files={"warmup/row": "short"}),
    good=Example(sample(data='input_data_file: "row"'), files={"warmup/row": "8 bytes."}),
    refused="warmup setting expects 8 bytes, but the data provided",
)
def sample_files_are_long_enough(config: Configuration) -> Iterator[Problem]:
    """The file of a warm-up sample holds fewer bytes than the tensor has.

    The rest of a longer file is ignored.

    Source: core, backend_model_instance.cc (GenerateWarmupData).
    Fix: write the raw bytes of one item: elements of dims x bytes of the type.
    """
    for index, name, tensor, _ in tensors(config):
        path = _file(config, tensor)
        size = ELEMENT_BYTES.get(tensor.data_type)
        if path is None or size is None or not path.is_file() or any(dim < 0 for dim in tensor.dims):
            continue
        needed, available = size * math.prod(tensor.dims), path.stat().st_size
        if available < needed:
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample for "{name}" needs {needed} bytes, and warmup/{tensor.input_data_file} has '
                f"{available}: the model cannot load. Write the raw bytes of one item.",
            )
