"""Models in a row as one model of their own: an ensemble, in which each takes what the one before gives."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from export.add.model_config import Added, quoted
from export.graph.signature import Tensor
from triton_batching.terminal import Mistake


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An ensemble to write: its name, its models in order, and where it was asked for, for messages."""

    name: str
    models: tuple[str, ...]
    where: str


def files(pipeline: Pipeline, added: Sequence[Added]) -> dict[str, str]:
    """The text files of the ensemble's folder; raises `Mistake` where one model does not give what the next takes."""
    known = {one.deployment.name: one for one in added}
    steps = [known[name] for name in pipeline.models]
    sizes = {one.max_batch_size for one in steps}
    if 0 in sizes and len(sizes) > 1:
        unbatched = ", ".join(one.deployment.name for one in steps if not one.max_batch_size)
        raise Mistake(f"{pipeline.where}: {unbatched} has no batch axis and the others have one. Leave it out.")
    links = [_link(pipeline, one, other) for one, other in itertools.pairwise(steps)]
    # A request goes through whole, so the smallest step decides.
    lines = [
        f"# {pipeline.name}: {' -> '.join(pipeline.models)}, each batched on its own.",
        f'name: "{pipeline.name}"',
        'platform: "ensemble"',
        "# A request goes through whole, so the smallest limit of the steps holds.",
        f"max_batch_size: {min(sizes)}",
        *_edge("input", steps[0], steps[0].signature.inputs),
        *_edge("output", steps[-1], steps[-1].signature.outputs),
        "ensemble_scheduling {",
        "  step [",
        ",\n".join(_step(number, one, links, last=len(steps) - 1) for number, one in enumerate(steps)),
        "  ]",
        "}",
    ]
    readme = f"# {pipeline.name}\n\n{' -> '.join(pipeline.models)}: an ensemble; each model batches on its own.\n"
    # The server wants a version folder, and git and archives drop empty ones.
    return {"config.pbtxt": "\n".join(lines) + "\n", "README.md": readme, "1/.keep": ""}


def _link(pipeline: Pipeline, one: Added, other: Added) -> Mapping[str, str]:
    """Input of `other` -> output of `one`: by name, or the only one to the only one."""
    given, taken = one.signature.outputs, other.signature.inputs
    link = {name: name for name in taken}
    if not taken.keys() <= given.keys():
        if len(given) != 1 or len(taken) != 1:
            raise Mistake(
                f"{pipeline.where}: {other.deployment.name} takes {', '.join(taken)}, {one.deployment.name} gives "
                f"{', '.join(given)}. Export them with the same names."
            )
        link = {next(iter(taken)): next(iter(given))}
    for target, source in link.items():
        if not _suits(given[source], taken[target]):
            raise Mistake(
                f"{pipeline.where}: {other.deployment.name} takes {target} as {_told(taken[target])}, "
                f"{one.deployment.name} gives {source} as {_told(given[source])}. Export them to fit."
            )
    return link


def _suits(given: Tensor, taken: Tensor) -> bool:
    return (
        given.type == taken.type
        and len(given.shape) == len(taken.shape)
        and all(-1 in pair or pair[0] == pair[1] for pair in zip(given.shape, taken.shape, strict=True))
    )


def _told(tensor: Tensor) -> str:
    return f"{tensor.type.removeprefix('TYPE_')} {list(tensor.shape)}"


def _edge(side: str, step: Added, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        dims = ", ".join(str(dim) for dim in tensor.shape[1 if step.batched else 0 :]) or "1"
        yield f'{side} [ {{ name: "{quoted(name)}" data_type: {tensor.type} dims: [ {dims} ] }} ]'


def _step(number: int, step: Added, links: Sequence[Mapping[str, str]], *, last: int) -> str:
    """Tensors between two steps are named after the step that makes them, so that equal names do not clash."""
    taken = {name: name for name in step.signature.inputs}
    if number:
        taken = {target: f"{number - 1}/{source}" for target, source in links[number - 1].items()}
    given = {name: name if number == last else f"{number}/{name}" for name in step.signature.outputs}
    if number < last:
        given = {name: inner for name, inner in given.items() if name in links[number].values()}
    maps = [
        *(f'      input_map {{ key: "{quoted(key)}" value: "{quoted(value)}" }}' for key, value in taken.items()),
        *(f'      output_map {{ key: "{quoted(key)}" value: "{quoted(value)}" }}' for key, value in given.items()),
    ]
    return "\n".join(
        ["    {", f'      model_name: "{step.deployment.name}"', "      model_version: -1", *maps, "    }"]
    )
