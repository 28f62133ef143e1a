"""Prove a plan of one device on a real server: it must meet its targets at its rates and miss one at 30 % more.

Simulated accelerators take the planned time of the models, and Triton's rate limiter makes them take turns, as on one
device.
"""

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from export.repository import REPOSITORY, model_folder
from perf.pack import packed_config, plan_file
from perf.pack.headroom import CHOOSING, plan
from perf.pack.placement import Placement
from perf.pack.replay import replay
from perf.pack.replayed import Replayed
from perf.pack.servers import servers
from perf.pack.validator import between, of
from perf.pack.workload import Curve, Model, Workload
from perf.records import file
from perf.records.load_record import LoadResult
from perf.records.offered_load import Load
from perf.records.traffic import Traffic
from perf.stats.dependence import design_effect
from perf.stats.latency_target import CONFIDENCE, judge
from perf.stats.percentile import percentile_ms
from perf.studies.experiment import Origin, command_line, now, origin
from perf.studies.interference import Progress, measure
from serve.launcher import Server, Settings, launch
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

ORIGINAL = "simulated_accelerator"
RESULTS = Path("perf/results/local/pack")
SCALES = (1.0, 1.3)
# The share of the requests that may be late.
SHARE = 0.01
WARM_UP_S = 4.0
# The names of the arrivals in `Traffic`.
PATTERNS = {"uniform": "constant", "poisson": "poisson"}


def build(
    models: tuple[Model, ...], folder: Path, *, server_ms: float, server_row_ms: float, repository: Path = REPOSITORY
) -> Path:
    """Make a copy of the simulated accelerator for each model; its executions take the planned time.

    `server_ms` and `server_row_ms` per row are the server's own work around an execution; the copy sleeps for the rest.
    Raises `Mistake` for a latency that is not a line, as a copy can only take fixed and row milliseconds.
    """
    original = model_folder(ORIGINAL, repository)
    text = (original / "config.pbtxt").read_text()
    for model in models:
        fixed, row = line(model.name, model.latency)
        if fixed <= server_ms or row < server_row_ms:
            raise Mistake(
                f"model {model.name}: {fixed:g} ms + {row:g} ms per row are not more than the server's own work, so a "
                "simulated accelerator is too slow. Prove slower models, or lower --server-ms and --server-row-ms."
            )
        copy = folder / model.name
        copy.mkdir()
        (copy / "1").symlink_to((original / "1").resolve())
        changes = {
            f'name: "{ORIGINAL}"': f'name: "{model.name}"',
            'string_value: "20"': f'string_value: "{fixed - server_ms:g}"',
            'string_value: "0.5"': f'string_value: "{row - server_row_ms:g}"',
        }
        (copy / "config.pbtxt").write_text(_changed(text, changes))
    return folder


def line(name: str, latency: Curve) -> tuple[float, float]:
    """The fixed and the row milliseconds of a linear latency; raises `Mistake` for another one."""
    if len(latency.sizes) < 2:
        return latency.values[0], 0.0
    row = (latency.values[-1] - latency.values[0]) / (latency.sizes[-1] - latency.sizes[0])
    fixed = latency.values[0] - row * latency.sizes[0]
    if any(abs(fixed + row * k - value) > 1e-6 for k, value in zip(latency.sizes, latency.values, strict=True)):
        raise Mistake(f"model {name}: its latency is not a line, which is all that a simulated accelerator can do.")
    return fixed, row


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise Mistake(f"{ORIGINAL}/config.pbtxt: {old} is not there exactly once, so it cannot be copied.")
        text = text.replace(old, new)
    return text


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model at one load: `late` of its `requests` were answered after `sla_ms`, wrongly or never.

    `late_sends` counts requests that the client sent more than 1 ms late. A percentile is None if it is of requests
    without an answer. `exec_ms` and `batch_rows` are means over executions by the server's counters, `planned_ms` the
    planned time of that many rows, and `replayed_*` the values of the simulation at the same rates. The requests are
    worth `requests` / `design_effect` independent ones; older records have 1.
    """

    model: str
    rate_per_s: float
    sla_ms: float
    requests: int
    late: int
    late_sends: int
    p50_ms: float | None
    p99_ms: float | None
    executions: int
    batch_rows: float
    largest_batch: int
    exec_ms: float
    planned_ms: float
    replayed_late_share: float
    replayed_p99_ms: float
    design_effect: float = 1.0

    @property
    def late_share(self) -> float:
        """The share of late requests."""
        return self.late / self.requests

    @property
    def in_time(self) -> bool | None:
        """Whether 99 % of the requests are in time, with 99 % confidence; None if there are too few to tell."""
        return judge(self.requests, self.late, SHARE, CONFIDENCE, design_effect=self.design_effect)


@dataclass(frozen=True, kw_only=True)
class Round:
    """All models at `scale` times their planned rates for `seconds`."""

    scale: float
    seconds: float
    busy_share: float
    models: tuple[ModelResult, ...]

    @property
    def in_time(self) -> bool | None:
        """True if all models meet their targets, False if one surely misses it, else None."""
        if any(model.in_time is False for model in self.models):
            return False
        return True if all(model.in_time for model in self.models) else None


@dataclass(frozen=True, kw_only=True)
class Proof(Origin):
    """The rounds on one server and its placement.

    `own_work_ms` (fixed, per row) is the server's own share of each planned execution; the model sleeps for the rest.
    """

    KIND: ClassVar[str] = "proof"
    FORMAT: ClassVar[int] = 1

    plan: str
    arrivals: str
    placement: Mapping[str, Any]
    own_work_ms: tuple[float, float]
    rounds: tuple[Round, ...]

    def write(self, folder: Path, name: str) -> Path:
        """Write the record."""
        return file.write(self, folder / name)

    @classmethod
    def read(cls, path: Path) -> "Proof":
        """Read a record; raises `RecordError`."""
        return file.read(path, cls, remedy="Run python -m perf.studies.packing.prove again.")


def prove(
    workload: Workload,
    placement: Placement,
    *,
    seconds: float,
    own_work_ms: tuple[float, float],
    seed: int,
    command: str,
    progress: Progress,
) -> tuple[Round, ...]:
    """Run both rounds on one server with the files of `packed_config`.

    `own_work_ms` (fixed, per row) is the server's own share of each planned execution. Raises the launcher's errors,
    and `Mistake` unless the placement has one device of kind cpu.
    """
    planned = servers(placement)
    if len(placement.nodes) != 1 or workload.devices.kind != "cpu":
        raise Mistake(
            f"the plan has {len(placement.nodes)} devices of kind {workload.devices.kind}. Simulated accelerators can "
            "only prove a plan with one device of kind cpu."
        )
    with tempfile.TemporaryDirectory(prefix="triton-batching-pack-") as folder:
        fixed, row = own_work_ms
        repository = build(workload.models, Path(folder), server_ms=fixed, server_row_ms=row)
        packed_config.write(planned[0], repository, kind=workload.devices.kind, command=command)
        settings = Settings(
            models=placement.nodes[0].models,
            config_name=planned[0].config_name,
            repository=repository,
            arguments=planned[0].arguments,
        )
        with launch(settings, progress=progress) as server:
            return tuple(_round(workload, placement, server, scale, seconds, seed, progress) for scale in SCALES)


def _round(
    workload: Workload,
    placement: Placement,
    server: Server,
    scale: float,
    seconds: float,
    seed: int,
    progress: Progress,
) -> Round:
    results = measure(
        server,
        {
            share.model: _load(workload, share.rate_per_s * scale, seconds, seed + number)
            for number, share in enumerate(placement.nodes[0].shares)
        },
        lambda text: progress(f"{scale:g} x the planned rates: {text}"),
    )
    replays = replay(workload, placement, scale=scale, seed=seed, numbers=range(CHOOSING, 2 * CHOOSING))
    expected = {replayed.model: replayed for replayed in replays}
    models = tuple(_result(workload, results[name], name, expected[name], scale) for name in placement.nodes[0].models)
    window = max(result.outcome.window_s for result in results.values())
    busy = sum(model.exec_ms * model.executions for model in models) / 1e3 / window
    return Round(scale=scale, seconds=window, busy_share=busy, models=models)


def _load(workload: Workload, rate_per_s: float, seconds: float, seed: int) -> Load:
    traffic = Traffic(pattern=PATTERNS[workload.arrivals], rate_per_s=rate_per_s)
    return traffic.load(warm_up_s=WARM_UP_S, duration_s=seconds, workers=1, seed=seed)


def _result(workload: Workload, result: LoadResult, name: str, expected: Replayed, scale: float) -> ModelResult:
    model, counted = of(workload, name), result.counted
    latencies = result.sample.latencies_us
    in_time = sum(us <= model.target_ms * 1e3 for us in latencies)
    rows = counted.rows_per_execution
    return ModelResult(
        model=name,
        rate_per_s=model.rate_per_s * scale,
        sla_ms=model.target_ms,
        requests=len(latencies),
        late=len(latencies) - in_time,
        late_sends=result.outcome.late_sends,
        p50_ms=_ms(latencies, 50),
        p99_ms=_ms(latencies, 99),
        executions=counted.executions,
        batch_rows=rows,
        largest_batch=max(counted.batches),
        exec_ms=counted.busy_ns / max(1, counted.executions) / 1e6,
        planned_ms=between(model.latency.sizes, model.latency.values, round(rows)),
        replayed_late_share=expected.share.value,
        replayed_p99_ms=expected.p99_ms,
        design_effect=design_effect(latencies, SHARE),
    )


def _ms(latencies_us: Sequence[float], percent: float) -> float | None:
    found = percentile_ms(latencies_us, percent)
    return found if math.isfinite(found) else None


def main(argv: list[str] | None = None) -> int:
    """Prove a plan; exit code 0 if it meets and misses its targets as expected, 1 if not, 2 for a user's mistake."""
    parser = program_parser(
        "python -m perf.studies.packing.prove", __doc__, example="perf/pack/plans/three_models.toml"
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each round's window (default 40)")
    parser.add_argument(
        "--server-ms",
        type=float,
        default=1.5,
        help="the server's own share of each planned execution, in ms (default 1.5)",
    )
    parser.add_argument("--server-row-ms", type=float, default=0.08, help="and per row, in ms (default 0.08)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    words = command_line("packing.prove", argv)

    def run() -> int:
        console = terminal()
        workload = plan_file.read(arguments.plan)
        placement, _ = plan(workload, seed=arguments.seed)
        started = now()
        with console.status("starting") as status:
            rounds = prove(
                workload,
                placement,
                seconds=arguments.seconds,
                own_work_ms=(arguments.server_ms, arguments.server_row_ms),
                seed=arguments.seed,
                command=" ".join(words),
                progress=status.update,
            )
        proof = Proof(
            plan=arguments.plan.name,
            arrivals=workload.arrivals,
            placement=asdict(placement),
            own_work_ms=(arguments.server_ms, arguments.server_row_ms),
            rounds=rounds,
            **origin(words, started),
        )
        path = proof.write(arguments.results, f"proof.{arguments.plan.stem}.json")
        console.print(_table(proof))
        console.print(f"written to {path}", markup=False)
        return 0 if [round_.in_time for round_ in rounds] == [True, False] else 1

    return guarded(run, on_interrupt="stopped; nothing was recorded.")


def _table(proof: Proof) -> Table:
    table = Table(
        "rates",
        "model",
        "target ms",
        "requests",
        "late %",
        "replayed %",
        "p99 ms",
        "replayed",
        "rows",
        "ms",
        "plan ms",
        title=f"{proof.plan}, {proof.arrivals} arrivals",
    )
    words = {True: "in time", False: "late", None: "cannot tell"}
    for round_ in proof.rounds:
        for model in round_.models:
            table.add_row(
                f"{round_.scale:g} x: {words[round_.in_time]}",
                model.model,
                f"{model.sla_ms:g}",
                str(model.requests),
                f"{100 * model.late_share:.2f}",
                f"{100 * model.replayed_late_share:.2f}",
                "no answer" if model.p99_ms is None else f"{model.p99_ms:.0f}",
                f"{model.replayed_p99_ms:.0f}",
                f"{model.batch_rows:.1f}",
                f"{model.exec_ms:.1f}",
                f"{model.planned_ms:.1f}",
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
