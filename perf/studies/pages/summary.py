"""All experiments in one table: question, command and result, from the records in git."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from perf.studies.aimd_cap import band, late_share
from perf.studies.archive import RESULTS
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import DEADLINE
from perf.studies.grid.judgement import TUNED
from perf.studies.overload import record as overload_record
from perf.studies.overload.bound import OWN
from perf.studies.pages import experiments, tools
from perf.studies.peers.point import LABELS
from perf.studies.pictures.table import changes
from perf.studies.tables import rows_markdown


@dataclass(frozen=True, kw_only=True)
class ExperimentSummary:
    """One experiment: `command` without `python -m perf.studies.`, `result` in one line."""

    command: str
    question: str
    result: Callable[[], str]
    page: str = ""


def table() -> str:
    """The table of all experiments."""
    rows = []
    for experiment in EXPERIMENTS:
        name = experiment.command.split()[0]
        title = f"[{name}]({experiment.page})" if experiment.page else name
        command = f"`python -m perf.studies.{experiment.command}`"
        rows.append((title, experiment.question, command, experiment.result()))
    return rows_markdown(("experiment", "question", "command", "result"), rows, left=4)


def _aimd_cap() -> str:
    cases = {case.name: case for case in experiments.cap_cases()}
    settled = cases["target 30 ms"].settled
    smallest, largest = band(settled)
    return (
        f"with a target of 30 ms it settles at {smallest} to {largest} rows, with {late_share(settled):.0%} of the "
        "batches over the target; after rows get three times as slow it is in time again after "
        f"{cases['rows cost three times as much'].recovery} batches"
    )


def _backend_overhead() -> str:
    cells = experiments.overhead_cells()
    return f"each of {len(cells)} cells takes at most {max(cell.ratio for cell in cells):.2f} x its lower bounds"


def _goodput() -> str:
    lines = {
        line.arrivals: line
        for line in goodput_table.lines(experiments.goodput_searches())
        if line.contender == DEADLINE
    }
    return (
        f"`deadline`: x {lines['poisson'].ratio} of greedy for Poisson arrivals, x {lines['gamma:4'].ratio} for bursts"
    )


def _grid() -> str:
    judgements = tools.judgements()
    ratios = [judgement.ratio.value for judgement in judgements]
    over = sum(judgement.violations for judgement in judgements)
    rounds = sum(len(judgement.of(TUNED)) for judgement in judgements)
    return (
        f"{min(ratios):.3f} to {max(ratios):.3f} of the throughput of the grid's best in {len(judgements)} cases; "
        f"{over} of {rounds} rounds over the target"
    )


def _memory_lab() -> str:
    trials = tools.allocator_trials()
    medians = (
        f"{name} {statistics.median(trial.held_over_load for trial in trials[name]):.2f}"
        for name in ("planned", "tensorflow bfc", "pytorch caching")
    )
    return f"median of held memory / bound: {', '.join(medians)}"


def _overload() -> str:
    records = [record for record in overload_record.read(RESULTS / "overload") if not record.give_up_ms]
    share = {record.bound: record.share for record in records}
    return f"in time / capacity: {share[OWN]:.2f} with the shipped limit, {share['none']:.2f} without a limit"


def _packing() -> str:
    devices = tools.packing_record().devices
    names = ("squishy", "improved", "exact")
    return "devices for 100 workloads: " + ", ".join(f"{name} {devices[name]}" for name in names)


def _pauses() -> str:
    ways = [pauses.way for pauses in tools.pauses_records()]
    return f"outside the model it takes {min(ways):.1f} to {max(ways):.1f} x as long as in a closed loop"


def _peers() -> str:
    shares: dict[str, list[float]] = {}
    for peer_round in experiments.peer_rounds():
        shares.setdefault(LABELS[peer_round.contender], []).append(peer_round.share)
    medians = sorted(((statistics.median(values), name) for name, values in shares.items()), reverse=True)
    return "share of onnxruntime alone: " + ", ".join(f"{name} {share:.2f}" for share, name in medians)


def _pictures() -> str:
    change = statistics.median(changes(experiments.pictures_records("simulated_accelerator"), 32))
    return f"{change:+.0%} mean latency at 32 pictures in flight behind a simulated accelerator"


def _prediction() -> str:
    points = tools.compared_points()
    return f"{sum(point.holds for point in points)} of {len(points)} predictions within the limits"


def _ragged() -> str:
    rows = {(row.mix, row.route): row for row in experiments.ragged_rows("ragged_encoder")}
    gains = {mix: rows[mix, "ragged"].to_separate for mix in ("equal", "longer tail")}
    parts = [f"x {gain.median:.2f} ({mix})" for mix, gain in gains.items() if gain]
    return "ragged batches against separate executions: " + ", ".join(parts)


def _served_share() -> str:
    return f"resnet50: {statistics.median(experiments.served_shares()):.2f}"


def _soak() -> str:
    record = experiments.soak_run()
    return (
        f"{record.calls:,} calls in {record.minutes:g} minutes: {record.failures} failed, {len(record.faults)} faults"
    )


def _transports() -> str:
    latency = {
        gain.model: gain.latency for gain in experiments.transport_gains() if (gain.over, gain.workers) == ("grpc", 1)
    }
    sizes = {"row": "1 KB", "picture": "600 KB in", "map": "4 MB out"}
    return "latency over gRPC: " + ", ".join(f"x {latency[name]:.2f} for {size}" for name, size in sizes.items())


EXPERIMENTS = (
    ExperimentSummary(
        command="aimd_cap", question="Where does the cap of `batch_policy: aimd` settle?", result=_aimd_cap
    ),
    ExperimentSummary(
        command="backend_overhead",
        question="What does the Python backend add to an execution?",
        result=_backend_overhead,
    ),
    ExperimentSummary(
        command="goodput --live --seeds 5",
        question="Up to which rate are 99 % of the requests in time, by batching policy?",
        result=_goodput,
        page="goodput/README.md",
    ),
    ExperimentSummary(
        command="grid simulated_accelerator --load closed:32",
        question="How close is the tuner's choice to the best of a full grid?",
        result=_grid,
        page="../tune/README.md",
    ),
    ExperimentSummary(
        command="memory_lab perf/studies/results/memory/traces/*.json",
        question="How much memory do allocators hold for recorded inferences?",
        result=_memory_lab,
        page="memory_lab/README.md",
    ),
    ExperimentSummary(
        command="overload simulated_accelerator --config-name dynamic --target-ms 2000 --time-scale 8",
        question="What does a model answer and refuse at ten times its capacity?",
        result=_overload,
        page="../../serve/README.md#overload",
    ),
    ExperimentSummary(
        command="packing",
        question="How many devices does each packing algorithm need?",
        result=_packing,
        page="../pack/README.md",
    ),
    ExperimentSummary(
        command="pauses ranker",
        question="What does a pause cost a lone request?",
        result=_pauses,
        page="../simulate/README.md",
    ),
    ExperimentSummary(
        command="peers --rounds 5",
        question="How much of onnxruntime's speed do other servers keep?",
        result=_peers,
        page="peers/README.md",
    ),
    ExperimentSummary(
        command="pictures --classifier simulated_accelerator",
        question="What does batching buy behind JPEG decoding?",
        result=_pictures,
        page="../../model_repository/image_classification/README.md",
    ),
    ExperimentSummary(
        command="prediction simulated_accelerator",
        question="Are the simulation's predictions right?",
        result=_prediction,
        page="../simulate/README.md",
    ),
    ExperimentSummary(
        command="ragged ragged_encoder",
        question="Which way to serve requests of different length is fastest?",
        result=_ragged,
        page="RAGGED_REQUESTS.md",
    ),
    ExperimentSummary(
        command="ragged_requests",
        question="Which requests of different length run together?",
        result=lambda: "prints the server's own counts; keeps no record",
        page="RAGGED_REQUESTS.md",
    ),
    ExperimentSummary(
        command="served_share resnet50",
        question="How much of onnxruntime's speed does a served model keep?",
        result=_served_share,
    ),
    ExperimentSummary(
        command="soak --minutes 15",
        question="What fails or grows under every kind of client?",
        result=_soak,
        page="soak/README.md",
    ),
    ExperimentSummary(
        command="transports --rounds 7",
        question="What does shared memory gain over gRPC and HTTP?",
        result=_transports,
        page="TRANSPORTS.md",
    ),
)
