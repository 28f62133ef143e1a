"""Reads a plan file: devices and models in TOML, with missing values from records and model files."""

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from export.repository import REPOSITORY, read_config
from perf.measure.ramp_plan import RESULTS
from perf.measure.service_profile import load
from perf.memory.measured import Instance, powers
from perf.pack.workload import Curve, Devices, Model, Workload
from perf.records.size_mix import SizeMix
from triton_batching.terminal import Mistake

MIB = 2**20
Progress = Callable[[str], None]
KEYS: Mapping[str, frozenset[str]] = {
    "plan": frozenset({"arrivals", "devices", "models"}),
    "devices": frozenset({"count", "memory_mib", "kind"}),
    "models": frozenset(
        {
            *("name", "rate_per_s", "p99_ms", "overhead_ms", "latency_ms", "service_time", "mix"),
            *("weights_mib", "activation_mib"),
        }
    ),
}
# The name of a ramp's record; it ends with the number of threads if the configuration sets it.
RAMP = re.compile(r"\.b(\d+)\.k1(?:\.t\d+)?\.json$")
# The values of a plan: beyond them packing takes forever, or a number overflows.
LEAST = 1e-9
HOUR_MS, MOST_MIB, MOST_ROWS = 3_600_000, 2**30, 2**16
LARGEST: Mapping[str, int] = {
    "count": 10**6,
    "memory_mib": MOST_MIB,
    "weights_mib": MOST_MIB,
    "rate_per_s": 10**6,
    "p99_ms": HOUR_MS,
    "overhead_ms": HOUR_MS,
    "fixed": HOUR_MS,
    "row": HOUR_MS,
    "max_batch_size": MOST_ROWS,
}
LINE = frozenset({"fixed", "row", "max_batch_size"})


def read(
    path: Path, *, records: Path = RESULTS, repository: Path = REPOSITORY, progress: Progress = lambda _: None
) -> Workload:
    """The workload of a plan file; raises `Mistake` with the place of a wrong or missing value.

    Measures the memory of models that have none in the plan nor on record, and tells `progress`.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Mistake(f"{path}: cannot be read ({error.strerror}). perf/pack/README.md shows a plan.") from error
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path}: cannot be read as TOML ({error}). perf/pack/README.md shows a plan.") from error
    if "pairs" in content:
        raise Mistake(f"{path}: [[pairs]]: models of one device always take turns now. Remove this table.")
    _known(content, "plan", str(path))
    where = f"{path}: [devices]"
    devices = _known(_of(content, "devices", dict, str(path)), "devices", where)
    models = []
    for number, entry in enumerate(_of(content, "models", list, str(path)), 1):
        at = f"{path}: model {entry.get('name', number) if isinstance(entry, dict) else number}"
        models.append(_model(_known(entry, "models", at), at, records, repository, progress))
    _distinct([model.name for model in models], path)
    arrivals = content.get("arrivals", "poisson")
    if arrivals not in ("uniform", "poisson"):
        raise Mistake(f"{path}: arrivals = {arrivals!r} is not known. Write uniform or poisson.")
    kind = devices.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise Mistake(f"{where}: kind = {kind!r} is not known. Write gpu or cpu.")
    count = _number(devices, "count", where)
    return Workload(
        devices=Devices(count=int(count), memory_bytes=_number(devices, "memory_mib", where) * MIB, kind=kind),
        models=tuple(models),
        arrivals=arrivals,
    )


def _model(content: Mapping[str, Any], where: str, records: Path, repository: Path, progress: Progress) -> Model:
    name = _of(content, "name", str, where)
    if Path(name).name != name or name == "..":
        raise Mistake(f"{where}: the name of a model is that of its folder in the repository, not a path. Correct it.")
    latency = _at(where, lambda: _latency(content, name, where, records, repository))
    if latency.values[0] < LEAST:
        raise Mistake(
            f"{where}: latency_ms of the smallest batch is {latency.values[0]:g}: must be at least {LEAST:g}."
        )
    return Model(
        name=name,
        rate_per_s=_number(content, "rate_per_s", where),
        target_ms=_number(content, "p99_ms", where),
        overhead_ms=_number(content, "overhead_ms", where, least=0.0) if "overhead_ms" in content else 0.0,
        latency=latency,
        memory=_at(where, lambda: _memory(content, name, latency.largest, where, repository, progress)),
    )


def _latency(content: Mapping[str, Any], name: str, where: str, records: Path, repository: Path) -> Curve:
    """The latency by batch size: from the plan by size or as a line, else from the record of one instance."""
    if "latency_ms" in content:
        latency = _of(content, "latency_ms", dict, where)
        if set(latency) & LINE:
            if set(latency) != LINE:
                keys = ", ".join(sorted(LINE))
                raise Mistake(f"latency_ms as a line needs the keys {keys}; it has {', '.join(latency)}.")
            fixed, row = _number(latency, "fixed", where, least=0.0), _number(latency, "row", where, least=0.0)
            return Curve.line(fixed, row, int(_number(latency, "max_batch_size", where)))
        return _by_size(latency, "latency_ms", HOUR_MS)
    # The ramp with the largest batch size.
    ramps = sorted(records.glob(f"{name}.*.b*.k1*.json"), key=_ramped)
    expected = ramps[-1] if ramps and _ramped(ramps[-1]) else records / f"{name}.default.bN.k1.json"
    path = Path(content["service_time"]) if "service_time" in content else expected
    if not path.is_file():
        raise Mistake(f"has no latency_ms, and there is no record {path}. Measure it: triton-batching profile {name}.")
    times = load(path)
    largest = _max_batch_size(name, repository)
    if "service_time" not in content and times.max_batch_size < largest:
        raise Mistake(
            f"has no latency_ms, and {path} went up to {times.max_batch_size} of {largest} rows only. Measure all: "
            f"triton-batching profile {name}."
        )
    # A larger batch may be measured a little faster by noise; the plan does not rely on that.
    table_us, gap = times.table_us, times.gap
    sizes = range(1, times.max_batch_size + 1)
    values = itertools.accumulate(((table_us[rows] + gap.at(rows)) / 1e3 for rows in sizes), max)
    return Curve(sizes=tuple(sizes), values=tuple(values))


def _max_batch_size(name: str, repository: Path) -> int:
    """The model's max_batch_size; 0 if it is not in the repository."""
    file = repository / name / "config.pbtxt"
    return read_config(file).max_batch_size if file.is_file() else 0


def _ramped(path: Path) -> int:
    """The largest batch size of a ramp of one instance, by the name of its record; 0 for other records."""
    match = RAMP.search(path.name)
    return int(match[1]) if match else 0


def _memory(
    content: Mapping[str, Any], name: str, largest: int, where: str, repository: Path, progress: Progress
) -> Curve:
    """The memory by batch size: from the plan as weights and activations, else that of `triton-batching memory`.

    It is measured now if it has no record. The longest requests of the plan's `mix` count.
    """
    mix = SizeMix(text=_of(content, "mix", str, where)) if "mix" in content else None
    if "weights_mib" in content:
        weights = _number(content, "weights_mib", where, least=0.0) * MIB
        more = Curve.line(0, 0, 1)
        if "activation_mib" in content:
            more = _by_size(content["activation_mib"], "activation_mib", MOST_MIB)
        return Curve(sizes=more.sizes, values=tuple(weights + value * MIB for value in more.values))
    return _measured(name, largest, mix, repository, progress)


def _measured(name: str, largest: int, mix: SizeMix | None, repository: Path, progress: Progress) -> Curve:
    try:
        instance = Instance.of(name, mix=mix, repository=repository)
    except Mistake as mistake:
        raise Mistake(f"has no weights_mib, and {mistake} Or give weights_mib.") from mistake
    if mix is None and any(-1 in tensor.dims for tensor in instance.config.input):
        raise Mistake(
            'has no weights_mib, and its requests have no one length. Say how long they are with mix = "8:64", or give '
            "weights_mib."
        )
    sizes = powers(largest)
    record = instance.measured(sizes, progress=progress)
    own = float(record.empty if record.device == "cpu" else 0)  # each instance is a process
    return Curve(
        sizes=tuple(sizes),
        values=tuple(itertools.accumulate((own + record.sizes[rows].nbytes for rows in sizes), max)),
    )


def _by_size(content: Mapping[str, Any], key: str, most: int) -> Curve:
    try:
        points = sorted((int(size), float(value)) for size, value in content.items())
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Mistake(f"{key}: write values by batch size as {{ 1 = 20.5, 8 = 24 }}.") from error
    for size, value in points:
        if size > MOST_ROWS or not 0 <= value <= most:
            raise Mistake(f"{key}: {size} = {value:g}: batch sizes are 1 to {MOST_ROWS}, values 0 to {most}.")
    return Curve(sizes=tuple(size for size, _ in points), values=tuple(value for _, value in points))


def _at(where: str, action: Callable[[], Curve]) -> Curve:
    try:
        return action()
    except Mistake as mistake:
        raise mistake if str(mistake).startswith(where) else Mistake(f"{where}: {mistake}") from mistake


def _known(content: Any, kind: str, where: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise Mistake(f"{where}: not a table. perf/pack/README.md shows a plan.")
    if more := sorted(set(content) - KEYS[kind]):
        raise Mistake(f"{where}: {', '.join(more)} is not known. Known: {', '.join(sorted(KEYS[kind]))}.")
    return content


def _of(content: Mapping[str, Any], key: str, kind: type[Any], where: str) -> Any:
    value = content.get(key)
    if not isinstance(value, kind) or not value:
        raise Mistake(f"{where}: {key} is missing or no {kind.__name__}. perf/pack/README.md shows a plan.")
    return value


def _number(content: Mapping[str, Any], key: str, where: str, *, least: float = LEAST) -> float:
    value, most = content.get(key), LARGEST[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Mistake(f"{where}: {key} = {value!r} must be a number from {least:g} to {most}.")
    return float(value)


def _distinct(names: list[str], path: Path) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Mistake(f"{path}: {', '.join(twice)} is there twice. Merge the entries and add their rates.")
