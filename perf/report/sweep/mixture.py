"""Refuses mixtures: records of different machines, versions or files must not share a table."""

from collections import Counter
from collections.abc import Mapping, Sequence

from perf.records.measurement import Ceiling, Measurement, MeasurementKey
from triton_batching.terminal import Mistake

APART = "Move the records of one of them into another folder."
AGAIN = "Remove the records of the old file, and measure again."


class MixtureError(Mistake):
    """Records that must not share a table; the message names two of them and what to do."""


def refuse(records: Sequence[Measurement], ceilings: Sequence[Ceiling]) -> None:
    """Raise `MixtureError` unless machines are equal, versions per model, and files per configuration."""
    agreement = _Agreement()
    points = [record.point for record in records]
    entries: list[MeasurementKey | Ceiling] = [*points, *ceilings]
    for point in entries:
        agreement.check("machine", None, point.machine, point, APART)
        agreement.check("versions", point.model, _text(point.versions), point, APART)
    for point in points:
        key = (point.model, point.config_name)
        agreement.check("configuration file", key, point.config_sha256[:12], point, AGAIN)
        agreement.check("model file", key, point.model_sha256[:12], point, AGAIN)
    for ceiling in ceilings:
        agreement.check("model file", ceiling.model, ceiling.model_sha256[:12], ceiling, AGAIN)
        _refuse_foreign(ceiling, points)
    _refuse_twice([(point.model, point.config_name, str(point.load), point.repeat) for point in points])
    _refuse_twice([(ceiling.model, "ceiling", ceiling.threads, ceiling.repeat) for ceiling in ceilings])


class _Agreement:
    """The first value of each attribute, with the file that has it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, object], tuple[str, object]] = {}

    def check(self, what: str, key: object, value: object, entry: MeasurementKey | Ceiling, remedy: str) -> None:
        name, expected = self._seen.setdefault((what, key), (entry.file_name, value))
        if value != expected:
            raise MixtureError(
                f"{name} and {entry.file_name} differ in their {what} ({expected} / {value}), so they must not share "
                f"a table. {remedy}"
            )


def _refuse_foreign(ceiling: Ceiling, points: Sequence[MeasurementKey]) -> None:
    measured = {point.model_sha256: point.file_name for point in points if point.model == ceiling.model}
    if measured and ceiling.model_sha256 not in measured:
        raise MixtureError(
            f"{ceiling.file_name} and {next(iter(measured.values()))} differ in their model file, so the ceiling is "
            f"not that of the point. {AGAIN}"
        )


def _refuse_twice(keys: Sequence[tuple[object, ...]]) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise MixtureError(
                f"{count} records of the same point ({', '.join(map(str, key))}). Remove all but one of them."
            )


def _text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
