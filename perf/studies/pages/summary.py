"""All experiments in one table: question, command and result, from the records in git."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from perf.studies.archive import RESULTS
from perf.studies.cluster.faults import KILL_DOOR
from perf.studies.cost.record import ALONE, GRPC, HTTP, MAIN, MERGED, RAW, THEIRS, TOGETHER, find, over, size_text
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import DEADLINE
from perf.studies.grid.record import TUNED
from perf.studies.overload import record as overload_record
from perf.studies.pages import calls, experiments, padded, tools
from perf.studies.peers import table as peers_table
from perf.studies.peers.point import LABELS
from perf.studies.pictures.table import changes
from perf.studies.ragged.table import RAGGED
from perf.studies.tables import interval_text, rows_markdown
from perf.studies.transports.__main__ import gains as transport_gains


@dataclass(frozen=True, kw_only=True)
class ExperimentSummary:
    """One experiment: `command` without `python -m perf.studies.`, `result` in one line."""

    command: str
    question: str
    result: Callable[[], str]
    page: str


EXPERIMENTS: list[ExperimentSummary] = []


def experiment(command: str, page: str = "") -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Add a function to the table: it returns the result, and its docstring is the question."""

    def added(result: Callable[[], str]) -> Callable[[], str]:
        summary = ExperimentSummary(command=command, question=result.__doc__ or "", result=result, page=page)
        EXPERIMENTS.append(summary)
        return result

    return added


def table() -> str:
    """The table of all experiments."""
    rows = []
    for summary in EXPERIMENTS:
        name = summary.command.split()[0]
        title = f"[{name}]({summary.page})" if summary.page else name
        rows.append((title, summary.question, f"`python -m perf.studies.{summary.command}`", summary.result()))
    return rows_markdown(("experiment", "question", "command", "result"), rows, left=4)


@experiment("allocators resnet50 ranker text_recognition text_recognition_512 --rows 1 8 32")
def _allocators() -> str:
    """How much memory do allocators hold for the tensors of a model?"""
    trials = experiments.allocator_trials()
    medians = (
        f"{name} {statistics.median(trial.held_over_bound for trial in each):.2f}" for name, each in trials.items()
    )
    return f"median of held memory / least: {', '.join(medians)}"


@experiment("backend_overhead")
def _backend_overhead() -> str:
    """What does the Python backend add to an execution?"""
    cells = experiments.overhead_cells()
    largest = max((experiments.over_floors(cell) for cell in cells), key=lambda ratio: ratio.value)
    return f"each of {len(cells)} cells takes at most {interval_text(largest)} x its lower bounds"


@experiment("cluster faults", "../../serve/cluster/README.md")
def _cluster() -> str:
    """What do clients see when replicas die, hang, drain and are updated?"""
    records = [record for record in experiments.fault_records() if record.fault != KILL_DOOR]
    requests, failed, wrong = (
        sum(getattr(record.counts, name) for record in records) for name in ("requests", "failed", "wrong")
    )
    longest = max(record.counts.longest_ms for record in records) / 1e3
    sums = f"{failed:,} failed and {wrong} wrong of {requests:,} requests"
    return f"{sums} in {len(records)} trials, the longest {longest:.1f} s"


@experiment("cost --rounds 7", page="../../clients/README.md")
def _cost() -> str:
    """What does a call cost its client in CPU time?"""
    cells = calls.cost_record().cells
    main = [cell for name in (*TOGETHER, *MERGED, *ALONE) if (cell := find(cells, name))]
    parts = [f"{cell.client} {statistics.median(cell.all_us):.0f} us" for cell in main]
    pairs = [(HTTP, RAW), (THEIRS[1], GRPC)]
    parts += [f"{a} / {b} {interval_text(ratio)}" for a, b in pairs if (ratio := over(cells, a, b))]
    return f"with {size_text(MAIN)}: {', '.join(parts)}"


@experiment("goodput --live --seeds 5", page="goodput/README.md")
def _goodput() -> str:
    """Up to which rate are 99 % of the requests in time, by batching policy?"""
    lines = {
        line.arrivals: line
        for line in goodput_table.lines(experiments.goodput_searches())
        if line.contender == DEADLINE
    }
    return (
        f"`deadline`: x {lines['poisson'].ratio} of greedy for Poisson arrivals, x {lines['gamma:4'].ratio} for bursts"
    )


@experiment("grid simulated_accelerator --load closed:32", page="../tune/README.md")
def _grid() -> str:
    """How close is the tuner's choice to the best of a full grid?"""
    judgements = tools.judgements()
    ratios = [judgement.ratio.value for judgement in judgements]
    over = sum(judgement.violations for judgement in judgements)
    rounds = sum(len(judgement.of(TUNED)) for judgement in judgements)
    return (
        f"{min(ratios):.3f} to {max(ratios):.3f} of the throughput of the grid's best in {len(judgements)} cases; "
        f"{over} of {rounds} rounds over the target"
    )


@experiment("interference ranker text_recognition", page="../pack/README.md")
def _interference() -> str:
    """How much do two models on one device slow each other down?"""
    gains = [record.gain for record in tools.interference_records()]
    return f"throughput together over taking turns: x {min(gains):.2f} to {max(gains):.2f}"


@experiment(
    "overload simulated_accelerator --config-name dynamic --target-ms 2000 --time-scale 8",
    page="../../serve/README.md#overload",
)
def _overload() -> str:
    """What does a model answer and refuse at ten times its capacity?"""
    records = [record for record in overload_record.read(RESULTS / "overload") if not record.give_up_ms]
    share = {record.bound: record.share for record in records}
    own, none = (share[bound] for bound in (overload_record.OWN, overload_record.NONE))
    return f"in time / capacity: {own:.2f} with the shipped limit, {none:.2f} without a limit"


@experiment("packing", page="../pack/README.md")
def _packing() -> str:
    """How many devices does each packing algorithm need?"""
    devices = tools.packing_record().devices
    return "devices for 100 workloads: " + ", ".join(f"{name} {count}" for name, count in devices.items())


@experiment("padded", page="RAGGED_REQUESTS.md")
def _padded() -> str:
    """What does padding in the server gain for an encoder as it was exported?"""
    return padded.result()


@experiment("peers --rounds 6", page="peers/README.md")
def _peers() -> str:
    """How fast are other servers, and what does each add to onnxruntime?"""
    found = peers_table.ratios(calls.peer_rounds())
    parts = [f"{LABELS[each.ours]} / {LABELS[each.other]} {interval_text(each.ratio)}" for each in found]
    return f"throughput: {'; '.join(parts)}"


@experiment("pictures --classifier simulated_accelerator", page="../../model_repository/image_classification/README.md")
def _pictures() -> str:
    """What does batching buy behind JPEG decoding?"""
    change = statistics.median(changes(experiments.pictures_records("simulated_accelerator"), 32))
    return f"{change:+.0%} mean latency at 32 pictures in flight behind a simulated accelerator"


@experiment("prediction simulated_accelerator", page="../simulate/README.md")
def _prediction() -> str:
    """Are the simulation's predictions right?"""
    points = tools.compared_points()
    return f"{sum(point.holds for point in points)} of {len(points)} predictions within the limits"


@experiment("ragged ragged_encoder", page="RAGGED_REQUESTS.md")
def _ragged() -> str:
    """Which way to serve requests of different length is fastest?"""
    rows = {(row.mix, row.route): row for row in experiments.recorded_ragged_rows("ragged_encoder")}
    gains = {mix: rows[mix, RAGGED.name].to_separate for mix in ("equal", "longer tail")}
    parts = [f"x {interval_text(gain)} ({mix})" for mix, gain in gains.items() if gain]
    return "ragged batches against separate executions: " + ", ".join(parts)


@experiment("ragged_requests", page="RAGGED_REQUESTS.md")
def _ragged_requests() -> str:
    """Which requests of different length run together?"""
    return "prints the server's own counts; keeps no record"


@experiment("served_share resnet50")
def _served_share() -> str:
    """How much of onnxruntime's speed does a served model keep?"""
    record = experiments.share_record()
    return f"{record.model}: {interval_text(experiments.served_interval(record))}"


@experiment("soak --minutes 15", page="soak/README.md")
def _soak() -> str:
    """What fails or grows under every kind of client?"""
    record = experiments.soak_run()
    return (
        f"{record.calls:,} calls in {record.minutes:g} minutes: {record.failures} failed, {len(record.faults)} faults"
    )


@experiment("transports --rounds 7", page="TRANSPORTS.md")
def _transports() -> str:
    """What does shared memory gain over gRPC and HTTP?"""
    gains = transport_gains(calls.transport_cells())
    latency = {gain.model: gain.latency for gain in gains if (gain.over, gain.workers) == ("grpc", 1)}
    sizes = {"row": "1 KB", "picture": "600 KB in", "map": "4 MB out"}
    return "latency over gRPC: " + ", ".join(
        f"x {interval_text(latency[name])} for {size}" for name, size in sizes.items()
    )
