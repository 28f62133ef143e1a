"""The plan file of one model that packing reads."""

from pathlib import Path

PLAN = """
arrivals = "uniform"
[devices]
count = 4
memory_mib = 1000
[[models]]
name = "simulated_accelerator"
rate_per_s = 500
p99_ms = 60
latency_ms = { fixed = 20, row = 0.5, max_batch_size = 8 }
weights_mib = 50
activation_mib = { 8 = 16, 1 = 2 }
"""


def plan_path(tmp_path: Path, text: str = PLAN) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path
