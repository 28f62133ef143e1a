"""How much the steps measure: the small form, which any machine runs in two minutes, and that of a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass

from perf.studies.gpu.record import CPU, CUDA

# The largest accepted difference of an answer from onnxruntime on the CPU, as a share of the largest value. On a GPU
# TF32 rounds factors to 10 bits, as FP16 does, for which export.variant accepts as much.
TOLERANCES = {CPU: 1e-4, CUDA: 1e-2}


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What the steps measure, and for how long.

    answers: models whose answers are compared with those of onnxruntime on the CPU.
    recogniser, rows, clients, repeats, window_ms: of the sweeps; `repeats` are those of the other steps, too.
    precisions: models that get variants; `encoder_width` and `encoder_layers` are those of the encoder among them.
    padded, padded_lengths, checked: the encoder to pad, its mixes of lengths, and how many of its answers are compared.
    ragged, lengths, routes: the ragged model, its mixes, and the ways to send them.
    tuned, sizes, delays_us, instances, load: the model to tune, the grid, and the load.
    points, live_s: what the search of the tuner may cost; without points it does not run.
    looks: numbers of rounds at which the comparison with the grid's best may end.
    pair: two models for one device.
    memory: models of the repository, or of `memory_estimate.zoo`, and the batch sizes to run.
    trial_s: of a trial.
    """

    device: str
    answers: tuple[str, ...]
    recogniser: str
    rows: int
    clients: tuple[int, ...]
    repeats: int
    window_ms: int
    precisions: tuple[str, ...]
    encoder_width: int
    encoder_layers: int
    padded: str
    padded_lengths: tuple[str, ...]
    checked: int
    ragged: str
    lengths: tuple[str, ...]
    routes: tuple[str, ...]
    tuned: str
    sizes: tuple[int, ...]
    delays_us: tuple[int, ...]
    instances: tuple[int, ...]
    load: str
    points: int
    live_s: float
    looks: tuple[int, ...]
    pair: tuple[str, str]
    memory: Mapping[str, tuple[int, ...]]
    trial_s: float

    @property
    def tolerance(self) -> float:
        """The largest accepted difference of an answer."""
        return TOLERANCES[self.device]

    @property
    def kind(self) -> str:
        """The device as `export.add --kind` names it."""
        return "gpu" if self.device == CUDA else "cpu"


ENCODER = "encoder"

SMALL = Extent(
    device=CPU,
    answers=("ranker", "text_recognition"),
    recogniser="text_recognition",
    rows=1,
    clients=(1, 8),
    repeats=1,
    window_ms=100,
    precisions=(ENCODER,),
    encoder_width=64,
    encoder_layers=2,
    padded="blind",
    padded_lengths=("long tail",),
    checked=50,
    ragged="ragged_encoder",
    lengths=("longer tail",),
    routes=("separate executions", "ragged"),
    tuned="ranker",
    sizes=(8, 32),
    delays_us=(0,),
    instances=(1,),
    load="closed:8",
    points=0,
    live_s=0.0,
    looks=(1,),
    pair=("ranker", "simulated_accelerator"),
    memory={"mlp": (1, 8)},
    trial_s=0.3,
)

FULL = Extent(
    device=CUDA,
    answers=("ranker", "text_recognition", "text_recognition_512", "resnet50"),
    recogniser="text_recognition_512",
    rows=2,
    clients=(1, 2, 4, 8, 16, 32),
    repeats=3,
    window_ms=500,
    precisions=("resnet50", ENCODER),
    encoder_width=512,
    encoder_layers=6,
    padded="bert",
    padded_lengths=("equal", "mixed", "long tail"),
    checked=1000,
    ragged="ragged_encoder",
    lengths=("equal", "longer tail"),
    routes=("separate executions", "client padding", "ragged"),
    tuned="text_recognition_512",
    sizes=(2, 4, 8),
    delays_us=(0, 2500),
    instances=(1, 2),
    load="closed:32",
    points=13,
    live_s=90.0,
    looks=(5, 10),
    pair=("resnet50", "text_recognition_512"),
    memory={"resnet50": (1, 32), "text_recognition_512": (1, 8)},
    trial_s=2.0,
)

EXTENTS = {extent.device: extent for extent in (SMALL, FULL)}
