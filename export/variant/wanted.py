"""What the user wants: a variant of which model, under which name, and what it runs on."""

import argparse
from dataclasses import dataclass
from pathlib import PurePosixPath

from export.repository import ONNXRUNTIME, model_folder, remedy, repository_option
from export.variant.accelerator import TENSORRT, Accelerator, open_sizes
from export.variant.precision import FP16, PRECISIONS, STATIC
from export.variant.variant_folder import Origin
from triton_batching.options import refuse_unused
from triton_batching.terminal import Mistake


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


def read(arguments: argparse.Namespace) -> Wanted:
    """Read the command line; raises `Mistake` for a model that cannot have the variant."""
    if not (arguments.precision or arguments.accelerator or arguments.threads):
        raise Mistake("Name what differs: --precision, --accelerator or --threads; see --help.")
    _refuse_unused(arguments)
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


def _refuse_unused(arguments: argparse.Namespace) -> None:
    by_tensorrt = arguments.precision == FP16 and arguments.accelerator == TENSORRT
    converts = bool(arguments.precision) and not by_tensorrt
    why = "as TensorRT itself makes FP16 of the FP32 file" if by_tensorrt else "without --precision"
    refuse_unused(
        (bool(arguments.calibrate) and arguments.precision != STATIC, "--calibrate", "without --precision int8-static"),
        (bool(arguments.open_dims) and arguments.accelerator != TENSORRT, "--open-dims", "without TensorRT"),
        (bool(arguments.keep) and not converts, "--keep", why),
        (bool(arguments.samples) and not converts, "--samples", why),
        (bool(arguments.range) and not converts, "--range", why),
        (arguments.tolerance is not None and not converts, "--tolerance", why),
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
            "only. Convert the file before you add it with --variable-length."
        )
    if config.max_batch_size < 1:
        raise Mistake(
            f"{name}: has max_batch_size 0, so there is no batch axis to prove. Add it with one: triton-batching add "
            f"{origin.served} --name {name} --force{repository_option(origin.folder.parent)}."
        )
