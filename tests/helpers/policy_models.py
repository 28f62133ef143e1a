"""Stand-in models with a batch policy, and the metrics of their policy."""

import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from processes import wait_until
from tiny_models import parameters

from export.repository import REPOSITORY
from serve.launcher import Server

LOOP = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from batch_policy import Choice, create
from policy_loop import PolicyLoop
from policy_metrics import PolicyMetrics
from policy_settings import PolicySettings


def arrived(requests):
    pass

{classes}

class TritonPythonModel:
    def initialize(self, args):
        settings = PolicySettings.of(json.loads(args["model_config"]))
        self.loop = PolicyLoop(settings, {policy}, {answers}, args, pb_utils{metrics})

    def execute(self, requests):
        arrived(requests)
        return self.loop.take(requests)

    def finalize(self):
        self.loop.end()
"""


def looped(
    repository: Path, name: str, classes: str, *, policy: str, answers: str = "list", metrics: str = "", **values: str
) -> str:
    """A model whose policy, answers or metrics are an expression over `classes`, the code of some classes.

    A function `arrived` there gets the requests that Triton hands over.
    """
    stand_in(repository, name, **values)
    code = LOOP.format(classes=classes, policy=policy, answers=answers, metrics=metrics)
    (repository / name / "1" / "model.py").write_text(code)
    return name


def stand_in(repository: Path, name: str, *, fixed_ms: str = "20", row_ms: str = "0.5", **values: str) -> str:
    """A simulated accelerator that answers each row with the mean of its 4 values, and its name."""
    folder = repository / name
    shutil.copytree(REPOSITORY / "simulated_accelerator" / "1", folder / "1", ignore=shutil.ignore_patterns("__*"))
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 64\ndynamic_batching {{ }}\n'
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\ninstance_group [ { count: 1 } ]\n'
        + parameters(fixed_ms=fixed_ms, row_ms=row_ms, **values)
    )
    return name


def rows_of(number: int, rows: int = 1) -> "np.ndarray[Any, Any]":
    return np.full((rows, 4), number, dtype=np.float32)


def counted(server: Server, model: str, *, answered: int, refused: int = 0) -> dict[str, float]:
    """The metrics of a model, once they have that many rows and refusals: an instance answers before it counts."""
    names = ("batch_policy_rows_sum", "batch_policy_dropped_requests_total")

    def is_counted() -> bool:
        values = metrics(server, model)
        return [values[name] for name in names] == [answered, refused]

    assert wait_until(is_counted, seconds=5), metrics(server, model)
    return metrics(server, model)


def metrics(server: Server, model: str) -> dict[str, float]:
    """The policy's metrics of a model, buckets by their limit."""
    with urllib.request.urlopen(f"http://{server.settings.host}:{server.metrics_port}/metrics") as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith("batch_policy_")]
    values = {}
    for line in lines:
        labels, value = line.rsplit(" ", 1)
        if f'model="{model}"' in labels:
            assert f'instance="{model}_0' in labels
            assert 'version="1"' in labels
            limit = re.search(r'le="(.+?)"', labels)
            values[labels.partition("{")[0] + (limit[1] if limit else "")] = float(value)
    return values
