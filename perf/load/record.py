"""The record of a run of the load generator: one JSON file. `perf/records/runs.py` reads it."""

import hashlib
import itertools
import json
import math
import os
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.load.result import Result
from triton_batching import whole_file
from triton_batching.machine import Machine, versions

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a result was measured on.

    `config` is the configuration that the server reports. `time_scale` is the factor on the times of a simulated model.
    """

    model: str
    config_name: str | None
    config: ModelConfig
    transport: str
    time_scale: float
    started_at: str
    command: tuple[str, ...]


def write(result: Result, setting: Setting, folder: Path) -> Path:
    """Write a new file, whole or not at all, and return its path; raises `whole_file.NotWrittenError`.

    Runs of the same load on the same configuration are numbered.
    """
    load = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(result.load).items()}
    config = text_format.MessageToString(setting.config)
    content: dict[str, Any] = {
        "format": FORMAT,
        "kind": "fleet",
        "model": setting.model,
        "config_name": setting.config_name,
        "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
        "config": config,
        "transport": setting.transport,
        "time_scale": setting.time_scale,
        "started_at": setting.started_at,
        "command": setting.command,
        "machine": asdict(Machine.this()),
        "versions": {**versions(), "grpcio": version("grpcio")},
        **asdict(result),
        "load": load,
        "sample": None,
        "traced_us": None,
        "little": result.little,
        "stages_error": result.stages.error,
        "faults": result.faults,
    }
    kind = hashlib.sha256(
        repr((content["config_sha256"], setting.transport, sorted(load.items()))).encode()
    ).hexdigest()[:6]
    name = f"{setting.model}.{result.load.pattern}.w{result.load.workers:03d}.b{result.load.rows}.{kind}"
    files = (folder / f"{name}.r{repeat}.json" for repeat in itertools.count(1))
    # `Path.exists` raises for a folder without permission; the error of the write names the folder.
    free = next(file for file in files if not os.path.exists(file))  # noqa: PTH110
    return whole_file.write(free, _text(content, result))


def _text(content: dict[str, Any], result: Result) -> str:
    """JSON with one line for each list of values; the latency of a request without an answer is null."""
    latencies = [latency if math.isfinite(latency) else None for latency in result.sample.latencies_us]
    text = json.dumps(content, indent=1)
    for name, parts in {
        "sample": {"due_s": result.sample.due_s, "latencies_us": latencies},
        "traced_us": result.traced_us,
    }.items():
        lines = ",\n".join(f'  "{part}": {json.dumps(values, separators=(",", ":"))}' for part, values in parts.items())
        text = text.replace(f'"{name}": null', f'"{name}": {{\n{lines}\n }}', 1)
    return text + "\n"
