"""The plan file: devices and models in TOML, with what is not written there read from records and model files."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from export.repository import REPOSITORY, model_file, model_folder, read_config
from perf.measure.service_profile import load
from perf.measure.service_records import RESULTS
from perf.memory.estimate.batch_memory import Model as MemoryModel
from perf.pack.interference_record import read as read_pair
from perf.pack.workload import Curve, Devices, Model, Pair, Workload
from triton_batching.terminal import Mistake

MIB = 2**20
KEYS: Mapping[str, frozenset[str]] = {
    "plan": frozenset({"arrivals", "devices", "models", "pairs"}),
    "devices": frozenset({"count", "memory_mib", "kind"}),
    "models": frozenset(
        {"name", "rate_per_s", "sla_ms", "overhead_ms", "latency_ms", "service_time", "weights_mib", "activation_mib"}
    ),
    "pairs": frozenset({"models", "factors", "record"}),
}
# Where the configuration sets threads, the name of a ramp's record ends in their number.
RAMP = re.compile(r"\.b(\d+)\.k1(?:\.t\d+)?\.json$")
LINE = frozenset({"fixed", "row", "max_batch_size"})


def read(path: Path, *, records: Path = RESULTS, repository: Path = REPOSITORY) -> Workload:
    """The workload of a plan file; raises `Mistake` with the place of what is wrong or missing."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Mistake(f"{path}: cannot be read as TOML ({error}). perf/pack/README.md shows a plan.") from error
    _known(content, "plan", str(path))
    where = f"{path}: [devices]"
    devices = _known(_of(content, "devices", dict, str(path)), "devices", where)
    models = []
    for number, one in enumerate(_of(content, "models", list, str(path)), 1):
        at = f"{path}: model {one.get('name', number) if isinstance(one, dict) else number}"
        models.append(_model(_known(one, "models", at), at, records, repository))
    _distinct([one.name for one in models], path)
    arrivals = content.get("arrivals", "uniform")
    if arrivals not in ("uniform", "poisson"):
        raise Mistake(f"{path}: arrivals = {arrivals!r} is not known. Write uniform or poisson.")
    kind = devices.get("kind", "gpu")
    if kind not in ("gpu", "cpu"):
        raise Mistake(f"{where}: kind = {kind!r} is not known. Write gpu or cpu.")
    count = _number(devices, "count", where)
    return Workload(
        devices=Devices(count=int(count), memory_bytes=_number(devices, "memory_mib", where) * MIB, kind=kind),
        models=tuple(models),
        pairs=tuple(_pair(one, f"{path}: pair {number}") for number, one in enumerate(content.get("pairs", []), 1)),
        arrivals=arrivals,
    )


def _model(content: Mapping[str, Any], where: str, records: Path, repository: Path) -> Model:
    name = _of(content, "name", str, where)
    latency = _at(where, lambda: _latency(content, name, where, records, repository))
    return Model(
        name=name,
        rate_per_s=_number(content, "rate_per_s", where),
        sla_ms=_number(content, "sla_ms", where),
        overhead_ms=_number(content, "overhead_ms", where, least=0.0) if "overhead_ms" in content else 0.0,
        latency=latency,
        memory=_at(where, lambda: _memory(content, name, latency.largest, where, repository)),
    )


def _latency(content: Mapping[str, Any], name: str, where: str, records: Path, repository: Path) -> Curve:
    """Given by size, given as a line, or as one instance was measured on this machine."""
    if "latency_ms" in content:
        given = _of(content, "latency_ms", dict, where)
        if set(given) & LINE:
            if set(given) != LINE:
                raise Mistake(f"latency_ms as a line needs just {', '.join(sorted(LINE))}; it has {', '.join(given)}.")
            fixed, row = _number(given, "fixed", where, least=0.0), _number(given, "row", where, least=0.0)
            return Curve.line(fixed, row, int(_number(given, "max_batch_size", where)))
        return _by_size(given)
    # Of several ramps the one that went furthest.
    ramps = sorted(records.glob(f"{name}.*.b*.k1*.json"), key=_ramped)
    expected = ramps[-1] if ramps and _ramped(ramps[-1]) else records / f"{name}.default.bN.k1.json"
    path = Path(content["service_time"]) if "service_time" in content else expected
    if not path.is_file():
        raise Mistake(
            f"has no latency_ms, and there is no record {path}. Measure it: python -m perf.measure.service_time {name}."
        )
    found = load(path)
    most = _most_rows(name, repository)
    if "service_time" not in content and found.max_batch_size < most:
        raise Mistake(
            f"has no latency_ms, and {path} went up to {found.max_batch_size} of {most} rows only. Measure it whole: "
            f"python -m perf.measure.service_time {name}."
        )
    # A larger batch that was measured a little faster is no reason to count on it.
    table_us, gap = found.table_us, found.gap
    highest, values = 0.0, []
    for rows in range(1, found.max_batch_size + 1):
        highest = max(highest, (table_us[rows] + gap.at(rows)) / 1e3)
        values.append(highest)
    return Curve(sizes=tuple(range(1, found.max_batch_size + 1)), values=tuple(values))


def _most_rows(name: str, repository: Path) -> int:
    """The model's max_batch_size; 0 for one that is not in the repository."""
    file = repository / name / "config.pbtxt"
    return read_config(file).max_batch_size if file.is_file() else 0


def _ramped(path: Path) -> int:
    """Rows that a ramp of one instance went up to, by the name of its record; 0 for another record."""
    found = RAMP.search(path.name)
    return int(found[1]) if found else 0


def _memory(content: Mapping[str, Any], name: str, largest: int, where: str, repository: Path) -> Curve:
    """Given as weights and activations by size; else onnxruntime's, estimated from the model file."""
    if "weights_mib" in content:
        weights = _number(content, "weights_mib", where, least=0.0) * MIB
        more = _by_size(content["activation_mib"]) if "activation_mib" in content else Curve.line(0, 0, 1)
        return Curve(sizes=more.sizes, values=tuple(weights + value * MIB for value in more.values))
    folder = model_folder(name, repository)
    file = model_file(folder, read_config(folder / "config.pbtxt"))
    if file.suffix != ".onnx" or not file.is_file():
        raise Mistake(f"has no weights_mib, and {file} is no ONNX file to estimate its memory from. Write weights_mib.")
    estimate = MemoryModel.of(file)
    sizes = sorted({*(2**power for power in range(largest.bit_length())), largest})
    held = [float(estimate.at(size, {}).held) for size in sizes]
    return Curve(sizes=tuple(sizes), values=tuple(max(held[: at + 1]) for at in range(len(held))))


def _by_size(content: Mapping[str, Any]) -> Curve:
    try:
        points = sorted((int(size), float(value)) for size, value in content.items())
    except (TypeError, ValueError, AttributeError) as error:
        raise Mistake("values by batch size are written { 1 = 20.5, 8 = 24 }.") from error
    return Curve(sizes=tuple(size for size, _ in points), values=tuple(value for _, value in points))


def _pair(content: Mapping[str, Any], where: str) -> Pair:
    _known(content, "pairs", where)
    if "record" in content:
        return read_pair(Path(content["record"]))
    models, factors = _of(content, "models", list, where), _of(content, "factors", list, where)
    if len(models) != 2 or len(factors) != 2 or any(not isinstance(one, int | float) or one < 1 for one in factors):
        raise Mistake(f"{where}: needs two models and two factors of 1 or more, or a record of perf.pack.interference.")
    return Pair(models=(models[0], models[1]), factors=(float(factors[0]), float(factors[1])))


def _at(where: str, action: Callable[[], Curve]) -> Curve:
    try:
        return action()
    except Mistake as mistake:
        raise mistake if str(mistake).startswith(where) else Mistake(f"{where}: {mistake}") from mistake


def _known(content: Any, kind: str, where: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise Mistake(f"{where}: is no table. perf/pack/README.md shows a plan.")
    if more := sorted(set(content) - KEYS[kind]):
        raise Mistake(f"{where}: {', '.join(more)} is not known. Known: {', '.join(sorted(KEYS[kind]))}.")
    return content


def _of(content: Mapping[str, Any], key: str, kind: type[Any], where: str) -> Any:
    found = content.get(key)
    if not isinstance(found, kind) or not found:
        raise Mistake(f"{where}: {key} is missing or no {kind.__name__}. perf/pack/README.md shows a plan.")
    return found


def _number(content: Mapping[str, Any], key: str, where: str, *, least: float | None = None) -> float:
    found = content.get(key)
    if (
        isinstance(found, bool)
        or not isinstance(found, int | float)
        or (found <= 0 if least is None else found < least)
    ):
        limit = "above 0" if least is None else f"of at least {least:g}"
        raise Mistake(f"{where}: {key} = {found!r} must be a number {limit}.")
    return float(found)


def _distinct(names: list[str], path: Path) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Mistake(f"{path}: {', '.join(twice)} is there twice. Add the rates of the two.")
