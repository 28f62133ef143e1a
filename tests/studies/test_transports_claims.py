"""The figures that perf/studies/TRANSPORTS.md claims for the transports, held against their record."""

import json
from pathlib import Path
from typing import Any

from perf.studies.transports import GATES

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "perf" / "results" / "clients" / "transports.json").read_text())


def spread(gain: dict[str, Any], part: str) -> str:
    low, high = gain[f"{part}_range"]
    return f"{gain[part]:.2f} ({low:.2f} to {high:.2f})"


def test_the_table_has_the_figures_of_the_record() -> None:
    text = (ROOT / "perf" / "studies" / "TRANSPORTS.md").read_text()
    for gain in RECORD["gains"]:
        start = f"| {gain['model']} | {gain['workers']} | {gain['over']} |"
        assert f"{start} {spread(gain, 'latency')} | {spread(gain, 'throughput')} |" in text
    assert f"--rounds {len(RECORD['cells'][0]['median_us'])} " in text


def test_shared_memory_beats_grpc_where_it_is_said_to() -> None:
    held = [gain for gain in RECORD["gains"] if gain["over"] == "grpc" and gain["model"] in GATES]
    assert len(held) == 4
    for gain in held:
        assert min(gain["latency"], gain["throughput"]) > GATES[gain["model"]]
