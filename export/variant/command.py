"""Makes a variant of a model and prints how it differs: what `python -m export.variant` does."""

import argparse
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add import model_folder
from export.graph import onnx_graph
from export.graph.axis_proof import open_session
from export.graph.input_values import parse_range
from export.graph.recipe import Recipe, digest
from export.graph.signature import Signature, check
from export.repository import REPOSITORY, read_config
from export.variant import variant_folder
from export.variant import wanted as wanted_variant
from export.variant.proved import Converted, TooDifferent, proved
from export.variant.report import Report, error_cells, file_bytes, later_stage, memory, readme, table
from export.variant.trial_rows import TrialRows, trial_rows
from export.variant.wanted import Wanted
from triton_batching.terminal import Failure, terminal

Say = Callable[[str], None]


def run(arguments: argparse.Namespace) -> int:
    """Make the variant that the command line names, and print how it differs from its original."""
    wanted = wanted_variant.read(arguments)
    target = arguments.repository / wanted.name
    variant_folder.check_replaceable(target, force=arguments.force)
    console = terminal()
    with (
        console.status("reading") as status,
        model_folder.explained(),
        model_folder.draft(arguments.repository, wanted.name) as draft,
    ):

        def say(text: str) -> None:
            status.update(f"{wanted.name}: {text}")

        model = onnx_graph.load(wanted.origin.served)
        trial = _trial(arguments, wanted, model) if wanted.converts else None
        try:
            converted = proved(wanted, model, trial, say) if trial else None
        except TooDifferent as refused:
            names = (wanted.origin.folder.name, wanted.name)
            console.print(table(names, error_cells(refused.errors, refused.words, wanted.limit)))
            raise
        _write(wanted, model, converted, draft)
        say("measuring memory")
        report = _report(wanted, draft, converted, trial)
        (draft / "README.md").write_text(readme(report))
        variant_folder.record(draft, {"model": wanted.origin.folder.name, "precision": wanted.precision or ""})
        variant_folder.keep_added(target, draft, force=arguments.force)
        model_folder.move_in(draft, arguments.repository, force=True)
    console.print(report.table())
    for note in report.notes:
        console.print(note, markup=False)
    _after(wanted, arguments)
    return 0


def _trial(arguments: argparse.Namespace, wanted: Wanted, model: onnx.ModelProto) -> TrialRows:
    return trial_rows(
        model,
        Recipe.of(wanted.origin.served),
        samples=arguments.samples,
        calibrate=arguments.calibrate,
        chosen=dict(map(parse_range, arguments.range)),
    )


def _write(wanted: Wanted, model: onnx.ModelProto, converted: Converted | None, draft: Path) -> None:
    """Write the graph and the configurations into the draft, and check one against the other."""
    origin, made_by = wanted.origin, _made_by(wanted)
    path = draft / origin.served.parent.name / origin.served.name
    if converted is None:
        shutil.copytree(origin.served.parent, path.parent)
    else:
        path.parent.mkdir(parents=True)
        onnx_graph.save(converted.model, path)
    open_session(path)

    def appended(config: ModelConfig) -> Iterator[str]:
        return wanted.accelerator.lines(config, model, wanted.name)

    variant_folder.write_configs(origin, draft, appended, made_by)
    signature = Signature.of(path)
    for config in [draft / "config.pbtxt", *draft.glob("configs/*.pbtxt")]:
        for fault in check(read_config(config), signature):
            raise Failure(f"{wanted.name}/{config.relative_to(draft)}: {fault}")


def _made_by(wanted: Wanted) -> str:
    made = ", ".join(filter(None, (wanted.precision, wanted.accelerator.name)))
    return (
        f"Made by python -m export.variant from {wanted.origin.folder.name}: {made or 'threads'}. Change the original."
    )


def _report(wanted: Wanted, draft: Path, converted: Converted | None, trial: TrialRows | None) -> Report:
    sizes = sorted({1, wanted.origin.config.max_batch_size})
    served = wanted.origin.served
    files = (served, draft / served.parent.name / served.name)
    return Report(
        names=(wanted.origin.folder.name, wanted.name),
        file_bytes=(file_bytes(files[0]), file_bytes(files[1])),
        memory=(memory(files[0], sizes), memory(files[1], sizes)) if converted else None,
        precision=wanted.precision,
        errors=converted.errors if converted else (),
        words=converted.words if converted else None,
        limit=wanted.limit,
        proof=converted.proof if converted else None,
        shared_scale=bool(converted and converted.shared_scale),
        rounded=bool(converted and converted.rounded),
        origin=trial.origin if trial else "",
        drawn_at_random=bool(trial and trial.drawn_at_random),
        accelerator=wanted.accelerator.name,
        left_out=wanted.origin.left_out,
        source_sha256=digest(served),
    )


def _after(wanted: Wanted, arguments: argparse.Namespace) -> None:
    """What the doctor says of the variant, in a process of its own, and what to do next."""
    console = terminal()
    repository = arguments.repository
    ran = later_stage("serve.doctor", str(repository / wanted.name), "--fail-on", "never")
    findings = ran.stdout or f"serve.doctor failed: {ran.stderr}"
    for line in findings.splitlines():
        console.print(f"doctor: {line}", markup=False)
    where = "" if repository.resolve() == REPOSITORY else f" --repository {shlex.quote(str(repository))}"
    console.print(f"serve it: triton-batching serve --model {wanted.name}{where}", markup=False)
