"""Makes a variant of a model and prints how it differs: what `python -m export.variant` does."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.add.model_folder import drafts, move_in
from export.graph import onnx_graph
from export.graph.axis_proof import MOST_ROWS, Proof, open_session, session_of
from export.graph.batched import BatchAxisError, ProofSettings, batched
from export.graph.input_values import parse_range
from export.graph.recipe import Recipe, digest
from export.graph.signature import Signature, check
from export.graph.source import Source
from export.repository import ONNXRUNTIME, REPOSITORY, model_folder, read_config, remedy
from export.variant import variant_folder
from export.variant.accelerator import TENSORRT, Accelerator, open_sizes
from export.variant.accuracy import OutputError, WordsRead, answers, compare, words_read, worst
from export.variant.error_source import error_source
from export.variant.precision import DYNAMIC, FP16, PRECISIONS, STATIC, Conversion, kept, prepared
from export.variant.report import Report, file_bytes, memory, readme
from export.variant.trial_rows import TrialRows, trial_rows
from export.variant.variant_folder import Origin
from triton_batching.options import refuse_unused
from triton_batching.terminal import Failure, Mistake, terminal

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A variant to make: of which model, its name and precision, what it runs on, and nodes to leave in FP32."""

    origin: Origin
    name: str
    precision: str | None
    accelerator: Accelerator
    keep: tuple[str, ...]
    tolerance: float | None

    @property
    def converts(self) -> str | None:
        """The precision of the graph: TensorRT makes FP16 itself, of the FP32 graph."""
        return None if self.precision == FP16 and self.accelerator.name == TENSORRT else self.precision

    @property
    def limit(self) -> float:
        """The largest accepted difference."""
        return self.tolerance or PRECISIONS[self.converts or FP16].tolerance


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted graph with its proof: that of the batch axis, and its errors on samples."""

    model: onnx.ModelProto
    proof: Proof
    shared_scale: bool
    errors: Sequence[OutputError]
    words: WordsRead | None


def run(arguments: argparse.Namespace) -> int:
    """Make the variant that the command line names, and print how it differs from its original."""
    wanted = _wanted(arguments)
    target = arguments.repository / wanted.name
    variant_folder.check_replaceable(target, force=arguments.force)
    console = terminal()
    with console.status("reading") as status, drafts(arguments.repository) as folder:
        draft = folder / wanted.name

        def say(text: str) -> None:
            status.update(f"{wanted.name}: {text}")

        model = onnx_graph.load(wanted.origin.served)
        trial = _trial(arguments, wanted, model) if wanted.converts else None
        converted = _converted(wanted, model, trial, say) if trial else None
        _write(wanted, model, converted, draft)
        say("estimating memory")
        report = _report(wanted, draft, converted, trial)
        (draft / "README.md").write_text(readme(report))
        variant_folder.record(draft, {"model": wanted.origin.folder.name, "precision": wanted.precision or ""})
        variant_folder.keep_added(target, draft, force=arguments.force)
        move_in([draft], arguments.repository, force=True)
    console.print(report.table())
    for note in report.notes:
        console.print(note, markup=False)
    _after(wanted, arguments)
    return 0


def _wanted(arguments: argparse.Namespace) -> Wanted:
    if not (arguments.precision or arguments.accelerator or arguments.threads):
        raise Mistake("Name what differs: --precision, --accelerator or --threads; see --help.")
    unread = arguments.precision != STATIC
    refuse_unused(
        (bool(arguments.calibrate) and unread, "--calibrate", "without --precision int8-static"),
        (bool(arguments.keep) and not arguments.precision, "--keep", "without --precision"),
        (bool(arguments.open_dims) and arguments.accelerator != TENSORRT, "--open-dims", "without TensorRT"),
    )
    origin = Origin.of(model_folder(arguments.model, arguments.repository))
    accelerator = Accelerator(
        name=arguments.accelerator,
        precision=arguments.precision,
        threads=arguments.threads,
        open_sizes=open_sizes(arguments.open_dims),
        engine_cache=PurePosixPath(arguments.engine_cache),
    )
    _check(origin)
    accelerator.check(origin.config)
    threads = f"threads_{arguments.threads}" if arguments.threads else None
    parts = [arguments.model, (arguments.precision or "").replace("-", "_"), arguments.accelerator, threads]
    return Wanted(
        origin=origin,
        name="_".join(filter(None, parts)),
        precision=arguments.precision,
        accelerator=accelerator,
        keep=tuple(arguments.keep),
        tolerance=arguments.tolerance,
    )


def _check(origin: Origin) -> None:
    """Refuse a model whose variant could not be proved; raises `Mistake`."""
    config, name = origin.config, origin.folder.name
    if config.backend not in ONNXRUNTIME and config.platform != "onnxruntime_onnx":
        raise Mistake(
            f"{name}: is a model of {config.backend or config.platform or 'an ensemble'}, and a variant is made of an "
            "ONNX file. Name a model that serves one."
        )
    if not origin.served.is_file():
        raise Mistake(f"{origin.served}: no such file. {remedy(name, origin.served)}")
    if any(tensor.allow_ragged_batch for tensor in config.input) or config.batch_input:
        raise Mistake(
            f"{name}: takes requests of different length in one batch, and this program proves batches of equal rows "
            "only. Convert the file before you add it with --variable-length or --ragged."
        )
    if config.max_batch_size < 1:
        raise Mistake(
            f"{name}: has max_batch_size 0, so there is no batch axis to prove. Add it with one: triton-batching add "
            f"{origin.served} --name {name} --force."
        )


def _trial(arguments: argparse.Namespace, wanted: Wanted, model: onnx.ModelProto) -> TrialRows:
    return trial_rows(
        model,
        Recipe.of(wanted.origin.served),
        samples=arguments.samples,
        calibrate=arguments.calibrate,
        chosen=dict(map(parse_range, arguments.range)),
    )


def _converted(wanted: Wanted, model: onnx.ModelProto, trial: TrialRows, say: Say) -> Converted:
    """Convert and prove; raises `Failure` for an error above the tolerance, `BatchAxisError` for mixed rows."""
    precision = wanted.converts or FP16
    say(f"converting to {precision}")
    ready = prepared(model, precision)
    keep = kept(ready, wanted.keep)
    tensorrt = wanted.accelerator.name == TENSORRT
    conversion = Conversion(model=ready, precision=precision, calibration=trial.calibration, for_tensorrt=tensorrt)
    made = conversion.converted(keep)
    if len(made.graph.node) == len(ready.graph.node) and precision != FP16:
        raise Mistake(
            f"{wanted.origin.folder.name}: has no node that {precision} quantises, so the variant would be the same "
            "model. Choose another --precision."
        )
    errors, words = _errors(wanted, model, conversion, made, trial, say)
    if not worst(errors) <= wanted.limit:
        say("looking for the node that does most of the error")
        source = error_source(conversion, made, trial.rows, keep, say)
        raise Failure(_refusal(wanted, errors, str(source) if source else "No tensor of the graph shows where"))
    proof, shared = _proof(wanted, made, trial, say)
    return Converted(model=made, proof=proof, shared_scale=shared, errors=errors, words=words)


def _errors(
    wanted: Wanted,
    model: onnx.ModelProto,
    conversion: Conversion,
    made: onnx.ModelProto,
    trial: TrialRows,
    say: Say,
) -> tuple[list[OutputError], WordsRead | None]:
    batch = min(wanted.origin.config.max_batch_size, MOST_ROWS)
    before = answers(session_of(model), trial.rows, batch, lambda text: say(f"the original answers, {text}"))
    after = answers(conversion.session(made), trial.rows, batch, lambda text: say(f"the variant answers, {text}"))
    output = next(iter(before))
    words = words_read(before[output], after[output], trial.words) if trial.words else None
    return compare(before, after), words


def _proof(wanted: Wanted, made: onnx.ModelProto, trial: TrialRows, say: Say) -> tuple[Proof, bool]:
    """The proof of the batch axis, and whether the rows of a batch share scales, which dynamic quantisation does."""
    precision = PRECISIONS[wanted.converts or FP16]

    with tempfile.TemporaryDirectory(prefix="triton-batching-") as folder:
        samples = Path(folder) / "rows.npz"
        np.savez(samples, **trial.rows)

        def proof(tolerance: float | None) -> Proof:
            largest = wanted.origin.config.max_batch_size
            settings = ProofSettings(largest=largest, ranges={}, samples=samples, tolerance=tolerance, say=say)
            return batched(Source(model=made, origin=wanted.name), settings).proof

        try:
            return proof(precision.batch_tolerance), False
        except BatchAxisError:
            if precision.name != DYNAMIC:
                raise
        return proof(wanted.limit), True


def _refusal(wanted: Wanted, errors: Sequence[OutputError], source: str) -> str:
    error = max(errors, key=lambda error: error.largest)
    return (
        f'{wanted.name}: output "{error.output}" differs from the original by up to {error.largest:.1e} of its largest '
        f"value (mean {error.mean:.1e}, limit {wanted.limit:g}), so nothing was written. {source}. To accept it: "
        "--tolerance."
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
        origin=trial.origin if trial else "",
        drawn_at_random=bool(trial and trial.drawn_at_random),
        accelerator=wanted.accelerator.name,
        left_out=wanted.origin.left_out,
        source_sha256=digest(served),
    )


def _after(wanted: Wanted, arguments: argparse.Namespace) -> None:
    """What later stages say of the variant: the doctor, and the speed of both. Each runs in its own process."""
    console = terminal()
    repository = arguments.repository
    findings = _ran("serve.doctor", str(repository / wanted.name), "--fail-on", "never")
    for line in findings.splitlines():
        console.print(f"doctor: {line}", markup=False)
    if arguments.speed and wanted.converts and wanted.accelerator.name is None:
        names = (wanted.origin.folder.name, wanted.name)
        threads = ["--threads", str(wanted.accelerator.threads)] if wanted.accelerator.threads else []
        with console.status(f"measuring {' and '.join(names)} in turn"):
            speed = _ran("perf.compare.ceilings", *names, "--repository", str(repository), *threads)
        console.print(speed.rstrip(), markup=False)
    where = "" if repository.resolve() == REPOSITORY else f' ARGS="--repository {repository}"'
    console.print(f"serve it: make serve MODEL={wanted.name}{where}", markup=False)


def _ran(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout or f"{module} failed: {ran.stderr}"
