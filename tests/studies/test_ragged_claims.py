"""The figures that clients/RAGGED.md and the README of the backend claim, held against their records."""

import json
import statistics
from pathlib import Path

import pytest

from perf.studies.backend_overhead import LIMIT, REQUESTS, SIZES
from perf.studies.backend_stages import STAGES
from perf.studies.ragged.__main__ import CONCURRENCY
from perf.studies.ragged.table import MIXES, ROUTES, Row, Study, rows_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "perf" / "results"
SEPARATE, PADDED, RAGGED, BUDGET = (route.name for route in ROUTES[:4])


def rows(model: str, repeats: int) -> dict[tuple[str, str], Row]:
    study = Study(
        model=model, mixes=MIXES[model], routes=ROUTES, concurrency=CONCURRENCY, repeats=repeats, window_ms=500
    )
    return {(row.mix, row.route): row for row in rows_of(study, RESULTS / "ragged")}


@pytest.fixture(scope="module")
def encoder() -> dict[tuple[str, str], Row]:
    return rows("ragged_encoder", repeats=5)


@pytest.fixture(scope="module")
def recogniser() -> dict[tuple[str, str], Row]:
    return rows("text_recognition_ragged", repeats=3)


def to_separate(row: Row) -> float:
    assert row.to_separate is not None
    return row.to_separate.median


def to_ragged(row: Row) -> float:
    assert row.to_ragged is not None
    return row.to_ragged.median


def test_every_route_of_every_mix_was_measured(encoder: dict[tuple[str, str], Row]) -> None:
    assert len(encoder) == 4 * len(MIXES["ragged_encoder"])
    assert all(row.wasted is not None for row in encoder.values())


def test_ragged_against_separate_executions(encoder: dict[tuple[str, str], Row]) -> None:
    """About three times where texts are short and starting an execution is what costs; less where they are long."""
    assert to_separate(encoder["equal", RAGGED]) >= 3
    assert to_separate(encoder["uniform", RAGGED]) >= 2.95
    for mix in MIXES["ragged_encoder"]:
        assert encoder[mix.name, SEPARATE].rows_per_execution == 1
        assert to_separate(encoder[mix.name, RAGGED]) > 1.2


def test_padding_budget_costs_little_and_pays_where_tails_are_long(encoder: dict[tuple[str, str], Row]) -> None:
    for mix in MIXES["ragged_encoder"]:
        assert to_ragged(encoder[mix.name, BUDGET]) >= 0.97, mix.name
    assert to_ragged(encoder["long tail", BUDGET]) >= 1.2
    assert to_ragged(encoder["longer tail", BUDGET]) >= 1.5


def test_crops_of_any_width_gain_too(recogniser: dict[tuple[str, str], Row]) -> None:
    for mix in MIXES["text_recognition_ragged"]:
        assert to_separate(recogniser[mix.name, RAGGED]) >= 1.3
        assert to_ragged(recogniser[mix.name, BUDGET]) >= 0.97
        assert to_separate(recogniser[mix.name, RAGGED]) >= 0.97 * to_separate(recogniser[mix.name, PADDED])


def test_the_tables_of_the_document_are_those_of_the_records(
    encoder: dict[tuple[str, str], Row], recogniser: dict[tuple[str, str], Row]
) -> None:
    text = (ROOT / "clients" / "RAGGED.md").read_text()
    assert all(line(row) in text for row in (*encoder.values(), *recogniser.values()))


def line(row: Row) -> str:
    """A row of the document's tables."""
    assert row.wasted is not None
    ratio = "" if row.to_ragged is None else f"{row.to_ragged.median:.2f}"
    return (
        f"| {row.mix} | {row.route} | {row.rows_per_s:,.0f} | {to_separate(row):.2f} | {ratio} "
        f"| {row.rows_per_execution:.1f} | {row.infer_us_per_row / 1e3:.2f} | {row.wasted:.0%} |"
    )


def test_the_backend_keeps_to_its_floors() -> None:
    """Every cell within the limit; the served ResNet-50 within 3 % of onnxruntime alone."""
    record = json.loads((RESULTS / "backend" / "backend_overhead.json").read_text())
    assert [(cell["input_bytes"], cell["requests"]) for cell in record["cells"]] == [
        (size, requests) for size in SIZES.values() for requests in REQUESTS
    ]
    assert all(cell["ratio"] <= LIMIT for cell in record["cells"])
    assert all(set(cell["stages"]["stages_us"]) == set(STAGES) for cell in record["cells"])
    shares = json.loads((RESULTS / "backend" / "resnet50.served_share.json").read_text())["rounds"]
    assert statistics.median(one["alone_s"] / one["wall_s"] for one in shares) >= 0.97
