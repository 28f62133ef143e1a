"""The simulation against the real server: six configurations of each model, in a closed loop and with Poisson arrivals.

`python -m perf.simulate.check simulated_accelerator` measures what is not measured yet, three configurations after each
ramp of service times, so that a slow minute hits both, and prints predicted and measured side by side.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clients.fleet.variant import read
from export.terminal import Mistake, guarded, program_parser, terminal
from perf.service_profile import Profile
from perf.service_profile import load as load_ramp
from perf.service_time import bar, recorded
from perf.simulate.bench import KINDS, Bench
from perf.simulate.points import LIMITS, Point, holds, measured
from perf.study import Prediction

RESULTS = Path("perf/results/local/prediction")
MODELS = ("simulated_accelerator", "ranker", "text_recognition")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured point, what was predicted, and by how much that is off.

    `drift` is how much longer its executions took than predicted of the same sizes, `own_errors` what is off when it is
    predicted with executions as much longer: a miss that they do not share comes from the drift alone.
    """

    point: Point
    prediction: Prediction
    errors: Mapping[str, float]
    drift: float
    own_errors: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """`""` within the limits, else where a miss comes from."""
        if holds(self.errors):
            return ""
        return f"drift {self.drift:+.0%}" if holds(self.own_errors) else "miss"


def compare(folder: Path, models: Sequence[str] = MODELS) -> Iterator[Compared]:
    """Predict every measured point of a folder, from the ramps beside it; one that does not fit them is left out."""
    for model in models:
        config = read(model, None)
        for point in measured(folder, [model]):
            ramps = Profile(ramps=tuple(load_ramp(folder / name) for name in point.ramps))
            if not point.fits(ramps):
                continue
            prediction = point.predicted(config, ramps)
            longer = prediction.longer(point.counted)
            yield Compared(
                point=point,
                prediction=prediction,
                errors=point.errors(prediction),
                drift=longer - 1,
                own_errors=point.errors(point.predicted(config, ramps, stretch=longer)),
            )


def show(compared: Sequence[Compared], console: Console) -> None:
    """Print predicted and measured side by side, and how many are within the limits."""
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in LIMITS.items())
    table = Table(
        "model",
        "configuration",
        "load",
        "rows/s",
        "p50 ms",
        "p95 ms",
        "rows/execution",
        "",
        title=f"predicted / measured, limits {limits}",
    )
    for one in compared:
        point, predicted = one.point, one.prediction
        table.add_row(
            point.model,
            str(point.candidate),
            point.load,
            _pair(predicted.throughput_rows_per_s, point.throughput_rows_per_s),
            _pair(predicted.percentiles_ms[50], point.percentiles_ms[50]),
            _pair(predicted.percentiles_ms[95], point.percentiles_ms[95]),
            f"{predicted.rows_per_execution:.2f} / {point.counted.rows_per_execution:.2f}",
            one.verdict,
        )
    console.print(table)
    for name, some in by_load(compared).items():
        held, own = sum(holds(one.errors) for one in some), sum(holds(one.own_errors) for one in some)
        console.print(
            f"{name}: {held} of {len(some)} within the limits, {own} with the speed of their own executions",
            markup=False,
        )


def by_load(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The closed loops and the open ones."""
    return {
        "closed loops": [one for one in compared if not one.point.open],
        "Poisson arrivals": [one for one in compared if one.point.open],
    }


def _pair(predicted: float, measured: float) -> str:
    return f"{predicted:.1f} / {measured:.1f} ({predicted / measured - 1:+.1%})"


def main(argv: list[str] | None = None) -> int:
    """Measure what is missing, predict, print; exit code 2 for a user's mistake, 1 for a failed measurement."""
    parser = program_parser("python -m perf.simulate.check", __doc__, example="simulated_accelerator ranker")
    parser.add_argument("models", nargs="*", default=MODELS, help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--only-compare", action="store_true", help="measure nothing, compare what there is")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the records (default {RESULTS})")
    arguments = parser.parse_args(argv)
    command = recorded("perf.simulate.check", argv)

    def run() -> None:
        console = terminal()
        if not arguments.only_compare:
            with bar(console, len(arguments.models) * len(KINDS)) as told:
                for model in arguments.models:
                    Bench(config=read(model, None), folder=arguments.results, command=command).run(told)
        found = list(compare(arguments.results, arguments.models))
        if not found:
            models = " ".join(arguments.models)
            raise Mistake(
                f"{arguments.results}: holds no measured point of {models}, so there is nothing to compare. "
                f"Measure first: python -m perf.simulate.check {models} --results {arguments.results}"
            )
        show(found, console)
        if left := len(measured(arguments.results, arguments.models)) - len(found):
            console.print(
                f"left out: {left} measured point(s) of another machine, other versions or other service times than "
                f"those in {arguments.results}",
                markup=False,
            )

    return guarded(run, on_interrupt=f"stopped; what was measured is in {arguments.results}.")


if __name__ == "__main__":
    sys.exit(main())
