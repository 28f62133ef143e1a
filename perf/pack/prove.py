"""Run a plan of one device on a real server, at its rates and 30 % above: the first must hold, the second must break.

Simulated accelerators take what the plan's models take, and Triton's rate limiter makes them exclude each other in
time, as on one device. `python -m perf.pack.prove perf/pack/plans/three_models.toml`
"""

import datetime
import math
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from perf.load.load import Load
from perf.load.result import Result
from perf.pack import packed_file, plan_file, stand_in
from perf.pack.fleet_of_servers import servers
from perf.pack.live import Told, measure
from perf.pack.placement import Placement
from perf.pack.planning import plan
from perf.pack.proof import Held, Proof, Round
from perf.pack.replay import Replayed, replay
from perf.pack.validator import between, of
from perf.pack.workload import Workload
from perf.records.traffic import Traffic
from serve.launcher import Server, Settings, launch
from triton_batching.machine import Machine, versions
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

RESULTS = Path("perf/results/local/pack")
SCALES = (1.0, 1.3)
WARM_UP_S = 4.0
# The traffic's word for the same.
PATTERNS = {"uniform": "constant", "poisson": "poisson"}


def prove(
    workload: Workload,
    placement: Placement,
    *,
    seconds: float,
    own_work_ms: tuple[float, float],
    seed: int,
    command: str,
    told: Told,
) -> tuple[Round, ...]:
    """Both rounds, on one server that is started with the files that `packed_file` writes.

    Of each planned execution `own_work_ms` (fixed, for each row) are the server's own work.
    Raises the launcher's errors, and `Mistake` for a placement of more than one device or of another kind than CPU.
    """
    alike = servers(placement)
    if len(placement.nodes) != 1 or workload.devices.kind != "cpu":
        raise Mistake(
            f"the plan has {len(placement.nodes)} devices of kind {workload.devices.kind}; one of kind cpu is "
            "what simulated accelerators can prove."
        )
    with tempfile.TemporaryDirectory(prefix="triton-batching-pack-") as made:
        fixed, row = own_work_ms
        repository = stand_in.build(workload.models, Path(made), server_ms=fixed, server_row_ms=row)
        packed_file.write(alike[0], repository, kind=workload.devices.kind, command=command)
        settings = Settings(
            models=placement.nodes[0].models,
            config_name=alike[0].config_name,
            repository=repository,
            arguments=alike[0].arguments,
        )
        with launch(settings, progress=told) as server:
            return tuple(_round(workload, placement, server, scale, seconds, seed, told) for scale in SCALES)


def _round(
    workload: Workload, placement: Placement, server: Server, scale: float, seconds: float, seed: int, told: Told
) -> Round:
    results = measure(
        server,
        {
            share.model: _load(workload, share.rate_per_s * scale, seconds, seed + number)
            for number, share in enumerate(placement.nodes[0].shares)
        },
        lambda text: told(f"{scale:g} x the planned rates: {text}"),
    )
    expected = {one.model: one for one in replay(workload, placement, scale=scale, seed=seed)}
    held = tuple(_held(workload, results[name], name, expected[name], scale) for name in placement.nodes[0].models)
    window = max(one.outcome.window_s for one in results.values())
    busy = sum(one.exec_ms * one.executions for one in held) / 1e3 / window
    return Round(scale=scale, seconds=window, busy_share=busy, models=held)


def _load(workload: Workload, rate_per_s: float, seconds: float, seed: int) -> Load:
    traffic = Traffic(pattern=PATTERNS[workload.arrivals], rate_per_s=rate_per_s)
    return traffic.load(warm_up_s=WARM_UP_S, duration_s=seconds, workers=1, seed=seed)


def _held(workload: Workload, result: Result, name: str, expected: Replayed, scale: float) -> Held:
    model, counted = of(workload, name), result.counted
    latencies = sorted(result.sample.latencies_us)
    in_time = sum(one <= model.sla_ms * 1e3 for one in latencies)
    rows = counted.rows_per_execution
    return Held(
        model=name,
        rate_per_s=model.rate_per_s * scale,
        sla_ms=model.sla_ms,
        requests=len(latencies),
        late=len(latencies) - in_time,
        late_sends=result.outcome.late,
        p50_ms=_ms(latencies[len(latencies) // 2]),
        p99_ms=_ms(latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]),
        executions=counted.executions,
        batch_rows=rows,
        largest_batch=max(counted.batches),
        exec_ms=counted.busy_ns / max(1, counted.executions) / 1e6,
        planned_ms=between(model.latency.sizes, model.latency.values, round(rows)),
        replayed_late_share=expected.late / expected.requests,
        replayed_p99_ms=expected.p99_ms,
    )


def _ms(latency_us: float) -> float | None:
    return latency_us / 1e3 if math.isfinite(latency_us) else None


def main(argv: list[str] | None = None) -> int:
    """Prove; exit code 0 where the plan holds and breaks as it must, 1 where not, 2 for a user's mistake."""
    parser = program_parser("python -m perf.pack.prove", __doc__, example="perf/pack/plans/three_models.toml")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each round's window (default 40)")
    parser.add_argument(
        "--server-ms",
        type=float,
        default=1.5,
        help="ms of each planned execution that are the server's own work, not the model's (default 1.5)",
    )
    parser.add_argument("--server-row-ms", type=float, default=0.08, help="and for each of its rows (default 0.08)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default {RESULTS})")
    arguments = parser.parse_args(argv)
    words = ("python", "-m", "perf.pack.prove", *(sys.argv[1:] if argv is None else argv))

    def run() -> int:
        console = terminal()
        workload = plan_file.read(arguments.plan)
        placement = plan(workload, "squishy")
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with console.status("starting") as status:
            rounds = prove(
                workload,
                placement,
                seconds=arguments.seconds,
                own_work_ms=(arguments.server_ms, arguments.server_row_ms),
                seed=arguments.seed,
                command=" ".join(words),
                told=status.update,
            )
        proof = Proof(
            plan=arguments.plan.name,
            arrivals=workload.arrivals,
            placement=asdict(placement),
            own_work_ms=(arguments.server_ms, arguments.server_row_ms),
            rounds=rounds,
            started_at=started,
            command=words,
            machine=Machine.this(),
            versions=versions(),
        )
        path = proof.write(arguments.results, f"proof.{arguments.plan.stem}.json")
        console.print(_table(proof))
        console.print(f"written to {path}", markup=False)
        return 0 if [one.kept for one in rounds] == [True, False] else 1

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
    for one in proof.rounds:
        for held in one.models:
            table.add_row(
                f"{one.scale:g} x: {'holds' if one.kept else 'breaks' if one.kept is False else 'cannot tell'}",
                held.model,
                f"{held.sla_ms:g}",
                str(held.requests),
                f"{100 * held.late_share:.2f}",
                f"{100 * held.replayed_late_share:.2f}",
                "no answer" if held.p99_ms is None else f"{held.p99_ms:.0f}",
                f"{held.replayed_p99_ms:.0f}",
                f"{held.batch_rows:.1f}",
                f"{held.exec_ms:.1f}",
                f"{held.planned_ms:.1f}",
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
