"""Writes an ensemble of added models in which each model takes the outputs of the one before it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from export.add.added import Added
from export.add.model_config import quoted
from export.graph.signature import Tensor
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An ensemble to write: its name, its models in order, and its place in the YAML file for messages."""

    name: str
    models: tuple[str, ...]
    where: str


def files(pipeline: Pipeline, added: Sequence[Added]) -> dict[str, str]:
    """The text files of the ensemble's folder; raises `Mistake` if a model's outputs do not fit the next inputs."""
    models = {model.deployment.name: model for model in added}
    steps = [models[name] for name in pipeline.models]
    sizes = {step.max_batch_size for step in steps}
    if 0 in sizes and len(sizes) > 1:
        unbatched = ", ".join(step.deployment.name for step in steps if not step.max_batch_size)
        raise Mistake(f"{pipeline.where}: {unbatched} has no batch axis and the others have one. Leave it out.")
    links = [_link(pipeline, step, following) for step, following in itertools.pairwise(steps)]
    lines = [
        f"# {pipeline.name}: {' -> '.join(pipeline.models)}. Each of them forms its own batches.",
        f'name: "{pipeline.name}"',
        'platform: "ensemble"',
        "# Every step takes the whole request, so this is the smallest limit of the steps.",
        f"max_batch_size: {min(sizes)}",
        *_edge("input", steps[0], steps[0].signature.inputs),
        *_edge("output", steps[-1], steps[-1].signature.outputs),
        "ensemble_scheduling {",
        "  step [",
        ",\n".join(_step(number, step, links, last=len(steps) - 1) for number, step in enumerate(steps)),
        "  ]",
        "}",
    ]
    readme = f"# {pipeline.name}\n\nAn ensemble: {' -> '.join(pipeline.models)}. Each model forms its own batches.\n"
    # Triton requires a version folder, and git and archives drop empty ones.
    return {"config.pbtxt": "\n".join(lines) + "\n", "README.md": readme, "1/.keep": ""}


def _link(pipeline: Pipeline, step: Added, following: Added) -> Mapping[str, str]:
    """Input of `following` -> output of `step`: the same name, or the only input and the only output."""
    outputs, inputs = step.signature.outputs, following.signature.inputs
    link = {name: name for name in inputs}
    if not inputs.keys() <= outputs.keys():
        if len(outputs) != 1 or len(inputs) != 1:
            raise Mistake(
                f"{pipeline.where}: {following.deployment.name} takes {', '.join(inputs)}, {step.deployment.name} "
                f"returns {', '.join(outputs)}. Export them with the same names."
            )
        link = {next(iter(inputs)): next(iter(outputs))}
    for target, source in link.items():
        if not _fits(outputs[source], inputs[target]):
            raise Mistake(
                f"{pipeline.where}: {following.deployment.name} takes {target} as {_type_and_shape(inputs[target])}, "
                f"{step.deployment.name} returns {source} as {_type_and_shape(outputs[source])}. Export both with the "
                "same type and shape."
            )
    return link


def _fits(output: Tensor, target: Tensor) -> bool:
    return (
        output.type == target.type
        and len(output.shape) == len(target.shape)
        and all(-1 in pair or pair[0] == pair[1] for pair in zip(output.shape, target.shape, strict=True))
    )


def _type_and_shape(tensor: Tensor) -> str:
    return f"{tensor.type.removeprefix('TYPE_')} {list(tensor.shape)}"


def _edge(side: str, step: Added, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        dims = ", ".join(str(dim) for dim in tensor.shape[1 if step.batched else 0 :]) or "1"
        yield f'{side} [ {{ name: "{quoted(name)}" data_type: {tensor.type} dims: [ {dims} ] }} ]'


def _step(number: int, step: Added, links: Sequence[Mapping[str, str]], *, last: int) -> str:
    """Tensors between two steps get the number of the step that makes them, so that equal names do not clash."""
    inputs = {name: name for name in step.signature.inputs}
    if number:
        inputs = {target: f"{number - 1}/{source}" for target, source in links[number - 1].items()}
    outputs = {name: name if number == last else f"{number}/{name}" for name in step.signature.outputs}
    if number < last:
        outputs = {name: inner for name, inner in outputs.items() if name in links[number].values()}
    maps = [
        *(f'      input_map {{ key: "{quoted(key)}" value: "{quoted(value)}" }}' for key, value in inputs.items()),
        *(f'      output_map {{ key: "{quoted(key)}" value: "{quoted(value)}" }}' for key, value in outputs.items()),
    ]
    return "\n".join(
        ["    {", f'      model_name: "{step.deployment.name}"', "      model_version: -1", *maps, "    }"]
    )
