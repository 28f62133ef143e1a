"""W6: warm-up samples that are skipped or do not warm the model, and the response cache."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup, ModelWarmup

from serve.doctor.configuration import Configuration
from serve.doctor.finding import Problem, Severity
from serve.doctor.rule import PYTHON_MODEL, Example, rule
from serve.doctor.rules.requests import input_names
from serve.doctor.target import Target


def sample(batch: str = "batch_size: 1", data: str = "zero_data: true", rest: str = "", **changed: str) -> str:
    """A model_warmup with one sample for the input x of the examples."""
    name, kind = changed.get("name", "x"), changed.get("kind", "TYPE_FP32")
    tensor = f"data_type: {kind} dims: [ {changed.get('dims', '2')} ] {data}"
    return f'model_warmup [ {{ name: "zeros" {batch} inputs {{ key: "{name}" value {{ {tensor} }} }} {rest} }} ]'


def samples(config: Configuration) -> Iterator[tuple[int, ModelWarmup]]:
    """Index and sample of every sample that is not skipped; none for an ensemble."""
    if config.backend != "ensemble":
        yield from ((index, warmup) for index, warmup in enumerate(config.proto.model_warmup) if warmup.batch_size > 0)


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
            yield Problem(
                config.at("model_warmup", index),
                f'warm-up sample "{warmup.name}" has no batch_size, so tritonserver skips it. Write batch_size: 1.',
                # A size that is written is 0: the message says what to write.
                fix=config.document.opened("batch_size: 1", "model_warmup", index)
                if _can_run(config, warmup) and not config.document.has("model_warmup", index, "batch_size")
                else (),
            )


def _can_run(config: Configuration, warmup: ModelWarmup) -> bool:
    """Whether the server takes the sample once it is not skipped: made-up data that fits each required input."""
    inputs = {tensor.name: tensor for tensor in config.proto.input}
    required = {name for name, tensor in inputs.items() if not tensor.optional}
    return required <= warmup.inputs.keys() <= inputs.keys() and all(
        (tensor.zero_data or tensor.random_data)
        and tensor.data_type == inputs[name].data_type
        and len(tensor.dims) == len(inputs[name].dims)
        and all(size > 0 and dim in (-1, size) for size, dim in zip(tensor.dims, inputs[name].dims, strict=True))
        for name, tensor in warmup.inputs.items()
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
    for index, warmup in samples(config):
        for name in sorted(warmup.inputs.keys() - input_names(config)):
            yield Problem(
                config.at("model_warmup", index, "inputs"),
                f'the warm-up sample fills "{name}", which is not an input of this model, so backends fail. Correct '
                "the name, or remove it.",
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
    variable, most = any(-1 in tensor.dims for tensor in config.proto.input), config.proto.max_batch_size
    largest = max((warmup.batch_size for warmup in config.proto.model_warmup), default=0)
    if _on_gpu(config) and variable and largest < most and most > 1:
        yield Problem(
            config.at("model_warmup"),
            f"a GPU model with variable shapes is warmed with batches of up to {largest} of {most}, so the first "
            "large batch under load is slow. Add a sample with the largest batch and shape.",
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


def _text(content: str, dims: str = "1") -> Example:
    """A model with a warm-up sample whose text is the file warmup/text."""
    tensor = f"data_type: TYPE_STRING dims: [ {dims} ]"
    config = sample(kind="TYPE_STRING", dims=dims, data='input_data_file: "text"')
    return Example(
        f'backend: "python"\ninput [ {{ name: "x" {tensor} }} ]\noutput [ {{ name: "y" {tensor} }} ]\n{config}',
        files={"warmup/text": content, "1/model.py": PYTHON_MODEL},
    )


@rule("W614", Severity.ERROR, bad=_text("a plain text"), good=_text("\x02\0\0\0hi\x03\0\0\0you", dims="2"))
def texts_have_their_length(config: Configuration) -> Iterator[Problem]:
    """A warm-up file of TYPE_STRING is not texts with their lengths.

    The file holds each text after its length in 4 bytes, as many as `dims` says. The first 4 bytes of a plain text are
    taken for its length. The model is refused: "incomplete string data for inference input", or tritonserver 2.51
    ends by SIGSEGV, as in some of the loads whose warm-up fails (both measured).

    Source: server#6161; core, backend_model_instance.cc (GenerateWarmupData hands over the bytes of the file).
    Fix: write struct.pack("<I", len(text)) + text for each text, in bytes.
    """
    for index, warmup in samples(config):
        for name, tensor in sorted(warmup.inputs.items()):
            path = config.model.folder / "warmup" / tensor.input_data_file
            if not tensor.input_data_file or config.type_name(tensor.data_type) != "TYPE_STRING" or not path.is_file():
                continue
            wanted = math.prod(tensor.dims)
            count = _texts(path, most=wanted + 1)
            if count != wanted:
                found = "is not texts with their lengths" if count is None else f"holds {count} of {wanted} texts"
                yield Problem(
                    config.at("model_warmup", index, "inputs"),
                    f'warmup/{path.name}, for "{name}", {found}: tritonserver refuses the model, or crashes in '
                    "some loads. Write each text after its length in 4 bytes: struct.pack('<I', len(text)) + text.",
                )


def _texts(path: Path, most: int) -> int | None:
    """The number of texts in a file, at most `most`, each after its length in 4 bytes; None if it is anything else."""
    count, left = 0, path.stat().st_size
    with path.open("rb") as file:
        while left and count < most:
            length = int.from_bytes(file.read(4), "little")
            left -= 4 + length
            count += 1
            if left < 0:
                return None
            file.seek(length, os.SEEK_CUR)
    return count


CACHE = "response_cache { enable: true }"


@rule(
    "W623",
    Severity.WARNING,
    bad=Example(CACHE, target=Target(cache=False)),
    good=Example(CACHE, target=Target(cache=True)),
)
def the_cache_is_switched_on(config: Configuration) -> Iterator[Problem]:
    """A model uses the response cache, and the server has none.

    Without `--cache-config` the model loads and nothing is cached, without a warning (measured: the same request twice,
    2 executions; with a cache 1). Reported with `--no-cache`.

    Source: server documentation, response_cache.md; core, server.cc.
    Fix: start tritonserver with --cache-config=local,size=BYTES.
    """
    if config.target.cache is False and config.proto.response_cache.enable:
        yield Problem(
            config.at("response_cache", "enable"),
            "response_cache has no effect unless the server is started with --cache-config. Add the flag, for example "
            "--cache-config=local,size=104857600.",
        )
