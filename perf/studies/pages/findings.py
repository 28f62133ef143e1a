"""Every study in one table: its question, its command, and what it showed, out of the records in git."""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from perf.records import file
from perf.studies.aimd_cap import SLA_MS, band, batches_until, late_share, parts, read
from perf.studies.archive import unpacked
from perf.studies.goodput import table as goodput_table
from perf.studies.goodput.contender import DEADLINE
from perf.studies.grid.judgement import TUNED
from perf.studies.overload import record as overload_record
from perf.studies.overload.bound import OWN
from perf.studies.pages import experiments, tools
from perf.studies.pages.table import RESULTS, record_json, rows_markdown
from perf.studies.pauses import Pauses
from perf.studies.peers.point import LABELS
from perf.studies.pictures.table import changes
from perf.studies.prediction.comparison import FILE, MODELS
from perf.studies.soak import record as soak_record


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """One study: `command` without `python -m perf.studies.`, `result` in one line."""

    command: str
    question: str
    result: Callable[[], str]
    page: str = ""


def table() -> str:
    """The table of all studies."""
    rows = []
    for study in FINDINGS:
        name = study.command.split()[0]
        title = f"[{name}]({study.page})" if study.page else name
        rows.append((title, study.question, f"`python -m perf.studies.{study.command}`", study.result()))
    return rows_markdown(("study", "question", "command", "what it showed"), rows, left=4)


def _aimd_cap() -> str:
    cases = {case.name: (case, steps) for case, steps in read(RESULTS / "policy" / "aimd_cap.json")}
    settled, _ = parts(*cases["target 30 ms"])
    case, steps = cases["rows cost three times as much"]
    _, behind = parts(case, steps)
    smallest, largest = band(settled)
    recovery = batches_until(behind, int((SLA_MS - 20) // case.row_ms_after))
    return (
        f"with a target of 30 ms it settles at {smallest} to {largest} rows, with {late_share(settled):.0%} of the "
        f"batches over the target; when rows get three times as slow it is back in time after {recovery} batches"
    )


def _backend_overhead() -> str:
    cells = record_json("backend/backend_overhead.json")["cells"]
    return f"each of {len(cells)} cells takes at most {max(cell['ratio'] for cell in cells):.2f} x its floors"


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
    found = tools.judgements()
    ratios = [judgement.ratio.value for judgement in found]
    over, rounds = (
        sum(judgement.violations for judgement in found),
        sum(len(judgement.of(TUNED)) for judgement in found),
    )
    return (
        f"{min(ratios):.3f} to {max(ratios):.3f} of the throughput of the grid's best in {len(found)} cases; "
        f"{over} of {rounds} rounds over the target"
    )


def _memory_lab() -> str:
    trials = [trial for path in (RESULTS / "memory").glob("*.json") for trial in json.loads(path.read_text())["trials"]]
    held = {
        name: statistics.median(trial["held_over_load"] for trial in trials if trial["allocator"] == name)
        for name in ("planned", "tensorflow bfc", "pytorch caching")
    }
    return "median of held memory / bound: " + ", ".join(f"{name} {value:.2f}" for name, value in held.items())


def _overload() -> str:
    records = [record for record in overload_record.read(RESULTS / "overload") if not record.give_up_ms]
    share = {record.bound: record.share for record in records}
    return f"in time / capacity: {share[OWN]:.2f} with the shipped limit, {share['none']:.2f} without a limit"


def _packing() -> str:
    devices = tools.packed_devices()
    names = ("squishy", "improved", "exact")
    return "devices for 100 workloads: " + ", ".join(f"{name} {devices[name]}" for name in names)


def _pauses() -> str:
    found = [file.read(RESULTS / "pauses" / f"{model}.json", Pauses) for model in MODELS]
    ways = [pauses.way for pauses in found]
    return f"its way outside of the model takes {min(ways):.1f} to {max(ways):.1f} x as long as in a closed loop"


def _peers() -> str:
    shares: dict[str, list[float]] = {}
    for point in experiments.peer_points():
        shares.setdefault(LABELS[point.contender], []).append(point.share)
    medians = sorted(((statistics.median(some), name) for name, some in shares.items()), reverse=True)
    return "share of onnxruntime alone: " + ", ".join(f"{name} {share:.2f}" for share, name in medians)


def _pictures() -> str:
    records = [json.loads(path.read_text()) for path in (RESULTS / "pictures").glob("*.simulated_accelerator.r*.json")]
    change = statistics.median(changes(records, 32))
    return f"{change:+.0%} mean latency at 32 pictures in flight behind a simulated accelerator"


def _prediction() -> str:
    with unpacked(RESULTS / "prediction.jsonl") as folder:
        points = json.loads((folder / FILE).read_text())["points"]
    return f"{sum(point['holds'] for point in points)} of {len(points)} predictions within the limits"


def _ragged() -> str:
    rows = {(row.mix, row.route): row for row in experiments.ragged_rows("ragged_encoder")}
    gains = {mix: rows[mix, "ragged"].to_separate for mix in ("equal", "longer tail")}
    parts = [f"x {gain.median:.2f} ({mix})" for mix, gain in gains.items() if gain]
    return "ragged batches against separate executions: " + ", ".join(parts)


def _served_share() -> str:
    return f"resnet50: {statistics.median(experiments.served_shares()):.2f}"


def _soak() -> str:
    (path,) = (RESULTS / "soak").glob("*.json")
    record = soak_record.load(path)
    calls = sum(count for user in record.users for count in user.outcomes.values())
    return f"{calls:,} calls in {record.minutes:g} minutes: {record.failures} failed, {len(record.faults)} faults"


def _transports() -> str:
    gains = record_json("clients/transports.json")["gains"]
    latency = {gain["model"]: gain["latency"] for gain in gains if (gain["over"], gain["workers"]) == ("grpc", 1)}
    sizes = {"row": "1 KB", "picture": "600 KB in", "map": "4 MB out"}
    return "latency over gRPC: " + ", ".join(f"x {latency[name]:.2f} for {size}" for name, size in sizes.items())


FINDINGS = (
    StudySummary(command="aimd_cap", question="Where does the cap of `batch_policy: aimd` settle?", result=_aimd_cap),
    StudySummary(
        command="backend_overhead",
        question="What does the Python backend add to an execution?",
        result=_backend_overhead,
    ),
    StudySummary(
        command="goodput --live --seeds 5",
        question="At which rate are 99 % of the requests in time, by way to batch?",
        result=_goodput,
        page="goodput/README.md",
    ),
    StudySummary(
        command="grid simulated_accelerator --load closed:32",
        question="How near is the tuner's choice to the best of a full grid?",
        result=_grid,
        page="../tune/README.md",
    ),
    StudySummary(
        command="memory_lab perf/studies/results/memory/traces/*.json",
        question="How much memory do allocators hold for recorded inferences?",
        result=_memory_lab,
        page="../memory/README.md",
    ),
    StudySummary(
        command="overload simulated_accelerator --config-name dynamic --target-ms 2000 --time-scale 8",
        question="What does a model answer, refuse and use at ten times its capacity?",
        result=_overload,
        page="../../serve/README.md#overload",
    ),
    StudySummary(
        command="packing",
        question="How many devices does each packing algorithm need?",
        result=_packing,
        page="../pack/README.md",
    ),
    StudySummary(
        command="pauses ranker",
        question="What does a pause cost a lone request?",
        result=_pauses,
        page="../simulate/README.md",
    ),
    StudySummary(
        command="peers --rounds 5",
        question="How much of onnxruntime's speed do servers keep?",
        result=_peers,
        page="peers/README.md",
    ),
    StudySummary(
        command="pictures --classifier simulated_accelerator",
        question="What does batching buy behind JPEG decoding?",
        result=_pictures,
        page="../../model_repository/image_classification/README.md",
    ),
    StudySummary(
        command="prediction simulated_accelerator",
        question="Are the simulation's predictions right?",
        result=_prediction,
        page="../simulate/README.md",
    ),
    StudySummary(
        command="ragged ragged_encoder",
        question="Which way to serve requests of different length is fastest?",
        result=_ragged,
        page="RAGGED_REQUESTS.md",
    ),
    StudySummary(
        command="ragged_requests",
        question="Which requests of different length run together?",
        result=lambda: "prints the server's own counts; keeps no record",
        page="RAGGED_REQUESTS.md",
    ),
    StudySummary(
        command="served_share resnet50",
        question="How much of onnxruntime's speed does a served model keep?",
        result=_served_share,
    ),
    StudySummary(
        command="soak --minutes 15",
        question="What goes wrong or grows under every kind of client?",
        result=_soak,
        page="soak/README.md",
    ),
    StudySummary(
        command="transports --rounds 7",
        question="What does shared memory gain over gRPC and HTTP?",
        result=_transports,
        page="../../clients/README.md",
    ),
)
