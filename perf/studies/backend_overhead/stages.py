"""Where an execution of our onnxruntime backend spends its time, stage by stage, inside a real server.

A Python model runs the backend's own code, unchanged, with a clock around each stage; Triton calls it as it calls the
backend. The time that the server counts outside `execute` is the hop: requests to the process, and answers back.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from serve.installation import DROP_IN

STAGES = ("read", "gather", "run", "scatter", "respond")
FILE = "stages.json"
PROFILED = f"""\
import importlib.util
import json
import sys
import time

HOME, TIMES = {{home!r}}, {{times!r}}
sys.path.insert(0, HOME)
spec = importlib.util.spec_from_file_location("backend", HOME + "/model.py")
backend = importlib.util.module_from_spec(spec)
spec.loader.exec_module(backend)


class TritonPythonModel(backend.TritonPythonModel):
    def initialize(self, args):
        # Triton fills in model.py; without it the backend opens model.onnx.
        config = json.loads(args["model_config"]) | {{{{"default_model_filename": ""}}}}
        super().initialize(args | {{{{"model_config": json.dumps(config)}}}})
        self.spent, self.executions = {{{{}}}}, []
        self._read = self.timed("read", self._read)
        self._responses.fill = self.timed("respond", self._responses.fill)
        for stage in ("gather", "run", "scatter"):
            setattr(self._executor, "_" + stage, self.timed(stage, getattr(self._executor, "_" + stage)))

    def timed(self, stage, call):
        def clocked(*arguments):
            started = time.perf_counter()
            result = call(*arguments)
            self.spent[stage] += time.perf_counter() - started
            return result

        return clocked

    def execute(self, requests):
        self.spent = dict.fromkeys({STAGES!r}, 0.0)
        started = time.perf_counter()
        responses = super().execute(requests)
        self.executions.append(self.spent | {{{{"execute": time.perf_counter() - started}}}})
        return responses

    def finalize(self):
        with open(TIMES, "w") as file:
            json.dump(self.executions, file)
"""


@dataclass(frozen=True, kw_only=True)
class BackendStages:
    """Microseconds per execution, medians: each stage, the rest of `execute`, and the hop around it.

    `served_us` is the server's compute input + infer + output of the same executions.
    """

    served_us: float
    hop_us: float
    stages_us: Mapping[str, float]
    rest_us: float


def write_model(version: Path) -> None:
    """Write the model.py of a version folder that also has the ONNX file."""
    times = version.parent / FILE
    (version / "model.py").write_text(PROFILED.format(home=str(DROP_IN / "onnxruntime"), times=str(times)))


def read(model: Path, served_us: Sequence[float], skip: int) -> BackendStages:
    """The times that the model of this folder wrote when it was unloaded, without its first `skip` executions.

    `served_us` holds the server's mean time per execution of each later round.
    """
    executions = json.loads((model / FILE).read_text())[skip:]
    medians = {
        name: 1e6 * statistics.median(execution[name] for execution in executions) for name in (*STAGES, "execute")
    }
    execute, served = medians.pop("execute"), statistics.median(served_us)
    return BackendStages(
        served_us=served, hop_us=served - execute, stages_us=medians, rest_us=execute - sum(medians.values())
    )


def table(rows: Mapping[tuple[int, int], BackendStages]) -> Table:
    """One row per (bytes of an input, requests per execution)."""
    titles = ("input", "requests", "served us", "hop", *STAGES, "rest")
    table = Table(*titles, title="where the served time goes, us per execution (medians, with the clocks' own cost)")
    for (input_bytes, requests), stages in rows.items():
        values = (stages.served_us, stages.hop_us, *stages.stages_us.values(), stages.rest_us)
        table.add_row(f"{input_bytes / 1024:,.0f} KB", str(requests), *(f"{value:,.0f}" for value in values))
    return table
