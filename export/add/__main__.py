"""Add a model to the repository: its batch axis proved, its configuration written with the reason of every choice.

MODEL is an ONNX file, a torch.export file (.pt2) or a torch module factory `package.module:function`, which returns the
module and example inputs by name, the batch first (see export/graph/torch_source.py). `--yaml FILE` adds many at once,
from a list of `models:` in the form of grps' inference.yml. `make serve MODEL=NAME` serves what was added.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.table import Table

from export.add import grps, model_config, model_folder, pipeline
from export.add.deployment import NAME, Deployment
from export.add.grps import Plan
from export.add.model_config import Added
from export.graph import onnx_graph
from export.graph.batch_axis import open_session
from export.graph.batch_graph import BatchAxisError, Trial, batched
from export.graph.input_values import parse_range
from export.graph.model_source import existing, read
from export.graph.signature import Signature, check
from export.repository import REPOSITORY, read_config
from triton_batching.terminal import Failure, Mistake, guarded, program_parser, terminal

Say = Callable[[str], None]


def add(plan: Plan, *, repository: Path, force: bool = False, say: Say = lambda _: None) -> list[Added]:
    """Add all models of the plan or none; raises `Mistake` and `BatchAxisError`."""
    names = [deployment.name for deployment in plan.models] + ([plan.pipeline.name] if plan.pipeline else [])
    for name in names:
        model_folder.existing(repository, name, force=force)
    with model_folder.drafts(repository) as drafts, _told():
        added = [_draft(deployment, drafts, say) for deployment in plan.models]
        if plan.pipeline:
            model_folder.write(drafts / plan.pipeline.name, pipeline.files(plan.pipeline, added))
        model_folder.move_in([drafts / name for name in names], repository)
    return added


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what a disk that is full, or too little memory, means for the person who adds a model."""
    try:
        yield
    except OSError as error:
        # Writing to an open file fails without its name.
        where = f"{error.filename}: " if error.filename else ""
        raise Mistake(
            f"{where}the model could not be written ({error.strerror}), and nothing was added. Make room there or in "
            f"{tempfile.gettempdir()}, where it is tried, or name another --repository."
        ) from error
    except MemoryError as error:
        raise Mistake(
            f"the model does not fit into memory ({error}), and nothing was added. Lower --max-batch-size."
        ) from error


def _draft(deployment: Deployment, drafts: Path, say: Say) -> Added:
    """Build the folder of one model, and hold it against its own graph as every model of the repository is."""
    say(f"{deployment.name}: reading {deployment.source}")
    source = read(deployment.source)
    trial = Trial(
        largest=deployment.max_batch_size,
        given=deployment.ranges,
        samples=deployment.samples,
        tolerance=deployment.tolerance,
        say=lambda text: say(f"{deployment.name}: {text}"),
    )
    folder = drafts / deployment.name
    version = folder / str(deployment.version)
    version.mkdir(parents=True)
    try:
        found, why_not = batched(source, trial), ""
    except BatchAxisError as error:
        if deployment.batching != "none":
            raise
        found, why_not = None, error.reason
    onnx_graph.save(found.model if found else source.model, version / "model.onnx")
    open_session(version / "model.onnx", named=source.named)
    signature = Signature.of(version / "model.onnx")
    added = Added(deployment=deployment, origin=source.origin, signature=signature, batched=found, why_not=why_not)
    model_folder.write(folder, model_config.files(added))
    for config in [folder / "config.pbtxt", *folder.glob("configs/*.pbtxt")]:
        for fault in check(read_config(config), signature):
            raise Failure(f"{deployment.name}/{config.relative_to(folder)}: {fault}")
    return added


def run(arguments: argparse.Namespace) -> int:
    """Add what the command line or the YAML file asks for, and print it."""
    if bool(arguments.model) == bool(arguments.yaml):
        raise Mistake("Name one model, or a list of them with --yaml FILE; see --help.")
    plan = grps.read(arguments.yaml) if arguments.yaml else Plan(models=[_asked(arguments)])
    console = terminal()
    with console.status("adding") as status:
        added = add(plan, repository=arguments.repository, force=arguments.force, say=status.update)
    console.print(_table(added))
    for one in added:
        _explain(one)
    names = [one.deployment.name for one in added] + ([plan.pipeline.name] if plan.pipeline else [])
    where = "" if arguments.repository.resolve() == REPOSITORY else f' ARGS="--repository {arguments.repository}"'
    for name in names:
        console.print(f"serve it: make serve MODEL={name}{where}", markup=False)
    return 0


def _asked(arguments: argparse.Namespace) -> Deployment:
    deployment = Deployment(
        name=arguments.name or _own_name(arguments.model),
        source=arguments.model,
        batching=arguments.batching,
        max_batch_size=arguments.max_batch_size,
        batch_timeout_us=arguments.batch_timeout_us,
        instances=arguments.instances,
        kind=arguments.kind,
        ranges=dict(map(parse_range, arguments.range)),
        samples=arguments.samples,
        tolerance=arguments.tolerance,
    )
    for field, reason in deployment.faults():
        raise Mistake(f"--{field.replace('_', '-')}: {reason}")
    return deployment


def _own_name(model: str) -> str:
    """The name of a file without its ending, where a model may have it."""
    path = Path(model)
    if path.suffix in (".onnx", ".pt2") and NAME.fullmatch(existing(path).stem):
        return path.stem
    raise Mistake(f"{model}: has no name to be served under. Say it: --name NAME.")


def _table(added: Sequence[Added]) -> Table:
    table = Table("model", "from", "max batch", "batching", "batches proved", "largest difference")
    for one in added:
        proof = one.batched.proof if one.batched else None
        delay = one.deployment.batch_timeout_us
        dynamic = one.batched and one.deployment.batching == "dynamic"
        table.add_row(
            one.deployment.name,
            one.origin,
            str(one.max_batch_size),
            f"dynamic, {delay or 0} us delay" if dynamic else "none",
            ", ".join(map(str, proof.batches)) if proof else "-",
            f"{proof.error:.1e} (limit {proof.tolerance:.0e})" if proof else "-",
        )
    return table


def _explain(one: Added) -> None:
    """What a person should know before relying on the model."""
    console = terminal()
    if one.batched is None:
        console.print(f"{one.deployment.name}: no batch axis, so max_batch_size is 0. {one.why_not}", markup=False)
    else:
        if one.batched.changes:
            told = f"was exported for a fixed number of rows; {len(one.batched.changes)} changes made it dynamic"
            console.print(f"{one.deployment.name}: {told} (listed in its README.md)", markup=False)
        for name, bounds in one.batched.valid.items():
            console.print(f"{one.deployment.name}: input {name} was tried with {bounds}", markup=False)
        if not one.batched.proof.varied:
            console.print(f"{one.deployment.name}: every row gave the same answer: try --samples", markup=False)


def main(argv: list[str] | None = None) -> int:
    """Exit code 2 for a mistake in the call or the files, 1 for a model whose batch axis could not be proved."""
    arguments = _parser().parse_args(argv)
    return guarded(lambda: run(arguments), on_interrupt="stopped; nothing was added.")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m export.add",
        __doc__,
        example="classifier.onnx --name classifier --batching dynamic --max-batch-size 16 --batch-timeout-us 2000",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="FILE.onnx, FILE.pt2 or package.module:function")
    parser.add_argument("--name", help="what the model is served as (default: the file's name)")
    parser.add_argument("--batching", choices=("dynamic", "none"), default="dynamic")
    parser.add_argument("--max-batch-size", type=int, default=16, help="rows in one execution (default: 16)")
    parser.add_argument(
        "--batch-timeout-us", type=int, help="microseconds that a request may wait for others (default: no added delay)"
    )
    parser.add_argument("--instances", type=int, default=1, help="executions at a time (default: 1)")
    parser.add_argument("--kind", choices=("cpu", "gpu"), help="default: a GPU where there is one")
    parser.add_argument(
        "--range", action="append", default=[], metavar="NAME=lo:hi", help="valid values of an input (repeatable)"
    )
    parser.add_argument(
        "--samples", type=Path, help="an .npz file with real rows of every input, instead of random ones"
    )
    parser.add_argument("--tolerance", type=float, help="largest difference of a batch from its rows that is accepted")
    parser.add_argument("--yaml", type=Path, help="add every model of an inference.yml in grps' form")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    parser.add_argument("--force", action="store_true", help="replace a model of the same name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
