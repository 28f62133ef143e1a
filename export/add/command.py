"""Adds a model to a repository, and prints what was proved: what `python -m export.add` does."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from export.add import hints, model_config, model_folder, notes
from export.add.added import Added
from export.add.deployment import NAME, VERSION, Deployment
from export.add.model_source import check_name, read
from export.compiled import TORCH_ENDINGS
from export.graph import onnx_graph
from export.graph.axis_proof import NoValidRow, open_session
from export.graph.batched import BatchAxisError, Batched, ProofSettings, batched
from export.graph.changed import CrashError
from export.graph.input_values import parse_range, ranges, read_samples
from export.graph.lengths import check_counts, declared
from export.graph.opset import lowered
from export.graph.padding_axes import Variation
from export.graph.padding_proof import Padding, prove
from export.graph.rounding import roundings
from export.graph.shared import Shared, without_rows
from export.graph.signature import Signature, check
from export.graph.source import Source
from export.repository import read_config, repository_option
from triton_batching.options import refuse_unused
from triton_batching.terminal import Failure, Mistake, again, terminal

Say = Callable[[str], None]


def add(deployment: Deployment, *, repository: Path, force: bool = False, say: Say = lambda _: None) -> Added:
    """Add a model, its whole folder or nothing; raises `Mistake`, `Failure` or `BatchAxisError`."""
    check_name(deployment.source)
    model_folder.existing(repository, deployment.name, force=force)
    with model_folder.explained(), model_folder.draft(repository, deployment.name) as draft:
        added = _draft(deployment, draft, repository_option(repository), say)
        model_folder.move_in(draft, repository, force=force)
    return added


def _draft(deployment: Deployment, folder: Path, where: str, say: Say) -> Added:
    """Write the folder of the model, and check its configurations against its graph."""
    say(f"{deployment.name}: reading {deployment.source}")
    settings = ProofSettings(
        largest=deployment.max_batch_size,
        ranges=deployment.ranges,
        samples=deployment.samples,
        tolerance=deployment.tolerance,
        say=lambda text: say(f"{deployment.name}: {text}"),
    )
    padding, source = None, _source(deployment, settings)
    proved, shared, why_not = _batched(source, settings, deployment)
    if proved and deployment.variable_length:
        proved, padding = _padding(source, proved, settings, deployment)
    path = folder / VERSION / "model.onnx"
    path.parent.mkdir()
    onnx_graph.save(proved.model if proved else source.model, path)
    open_session(path, user_path=source.user_path)
    signature = Signature.of(path)
    added = Added(
        deployment=deployment,
        origin=source.origin,
        signature=signature,
        batched=proved,
        why_not=why_not,
        changes=source.changes,
        where=where,
        shared=shared,
        padding=padding,
    )
    model_folder.write(folder, model_config.files(added))
    for config in [folder / "config.pbtxt", *folder.glob("configs/*.pbtxt")]:
        for fault in check(read_config(config), signature):
            raise Failure(f"{deployment.name}/{config.relative_to(folder)}: {fault}")
    return added


def _source(deployment: Deployment, settings: ProofSettings) -> Source:
    """The model's graph, in the opset that the user wants."""
    source = read(deployment.source, open_axes=deployment.variable_length)
    if deployment.opset is None:
        return source
    settings.say(f"converting it to opset {deployment.opset}")
    return lowered(source, deployment.opset, deployment.ranges)


def _batched(source: Source, settings: ProofSettings, deployment: Deployment) -> tuple[Batched | None, Shared, str]:
    """The graph with its batch axis; without one None, the inputs that all rows share, and why there is none.

    Raises `BatchAxisError` or `NoValidRow` if the user wants batches and no shared input is the reason.
    """
    try:
        return batched(source, settings), Shared(), ""
    except (BatchAxisError, CrashError, NoValidRow) as error:
        if deployment.variable_length:
            raise
        shared = without_rows(source, settings)
        if not shared.inputs and deployment.batching != "none":
            if not isinstance(error, NoValidRow):
                raise BatchAxisError(
                    f"{str(error).rstrip('.')}. To serve it without batching: {again('--batching', 'none')}"
                ) from error
            raise
        return None, shared, shared.reason or str(error)


def _padding(
    source: Source, proved: Batched, settings: ProofSettings, deployment: Deployment
) -> tuple[Batched, Padding]:
    """Prove that requests of different length can share a batch; raises `PaddingError`."""
    settings.say("comparing padded requests with the same alone")
    variation = Variation.of(proved.model, deployment.pad_values)
    examples, length = source.examples, proved.proof.open_dim or 1
    if settings.samples:
        examples = read_samples(settings.samples, proved.model)
        length = max(examples[axis.tensor].shape[axis.index] for axis in variation.fills)
    valid = ranges(proved.model, settings.ranges, examples)
    check_counts(proved.model, valid, variation)
    model = declared(proved.model, valid, length)
    return replace(proved, model=model), prove(
        model,
        valid,
        length=length,
        roundings=roundings(model, settings.tolerance),
        variation=Variation.of(model, deployment.pad_values, deployment.masks),
        say=settings.say,
    )


def run(arguments: argparse.Namespace) -> int:
    """Add the model that the command line names, and print what was proved."""
    deployment, repository = _deployment(arguments), arguments.repository
    console = terminal()
    with console.status("adding") as status:
        say = status.update if console.is_terminal else notes.in_lines()
        added = add(deployment, repository=repository, force=arguments.force, say=say)
    console.print(notes.table(added))
    for line in (*notes.notes(added), *hints.of(deployment, added.signature, repository)):
        console.print(f"{deployment.name}: {line}", markup=False)
    for line in _findings(repository / deployment.name):
        console.print(f"doctor: {line}", markup=False)
    console.print(f"serve it: triton-batching serve --model {deployment.name}{added.where}", markup=False)
    return 0


def _findings(folder: Path) -> list[str]:
    """The doctor's findings on what was written, a line each. It is a later stage, so it runs in its own process."""
    command = [sys.executable, "-m", "serve.doctor", str(folder), "--fail-on", "never"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return (ran.stdout or f"it failed: {ran.stderr}").splitlines()


def _deployment(arguments: argparse.Namespace) -> Deployment:
    # The clearest cause first: without a file, no other argument matters.
    check_name(arguments.model)
    padded, alone = arguments.variable_length, arguments.batching == "none"
    refuse_unused(
        (bool(arguments.mask) and not padded, "--mask", "without --variable-length"),
        (bool(arguments.pad_value) and not padded, "--pad-value", "without --variable-length"),
        (padded and alone, "--variable-length", "with --batching none: requests never share a batch"),
    )
    return Deployment(
        name=_name(arguments),
        source=arguments.model,
        batching=arguments.batching,
        max_batch_size=arguments.max_batch_size,
        batch_timeout_us=arguments.batch_timeout_us,
        instances=arguments.instances,
        kind=arguments.kind,
        ranges=dict(map(parse_range, arguments.range)),
        samples=arguments.samples,
        tolerance=arguments.tolerance,
        variable_length=arguments.variable_length,
        pad_values=dict(map(_pad_value, arguments.pad_value)),
        masks=tuple(arguments.mask),
        opset=arguments.opset,
    )


def _pad_value(text: str) -> tuple[str, float]:
    """Read `NAME=VALUE`; raises `Mistake`."""
    name, _, value = text.rpartition("=")
    with contextlib.suppress(ValueError):
        if name:
            return name, float(value)
    raise Mistake(f"--pad-value {text}: not a value for an input. Write NAME=VALUE, for example tokens=0.")


def _name(arguments: argparse.Namespace) -> str:
    """The name of the model: that of its file, if none is given; raises `Mistake` if a model cannot have it."""
    path = Path(arguments.model)
    if arguments.name is None:
        if path.suffix in (".onnx", *TORCH_ENDINGS) and NAME.fullmatch(path.stem):
            return path.stem
        raise Mistake(f"{arguments.model}: gives the model no name. Add --name NAME.")
    if NAME.fullmatch(arguments.name):
        return str(arguments.name)
    raise Mistake(
        f"--name: '{arguments.name}' cannot name a model: the name is a folder, part of URLs and a flag of "
        "tritonserver. Use letters, digits, '_', '-' and '.', and begin with a letter or a digit."
    )
