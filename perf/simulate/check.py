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
from perf.service_profile import Profile, Way
from perf.service_profile import load as load_ramp
from perf.service_time import bar, recorded
from perf.simulate.bench import KINDS, Bench, lone_path
from perf.simulate.costs import Costs
from perf.simulate.points import CLOSED, LIMITS, OPEN, Point, holds, measured
from perf.simulate.points import load as load_point
from perf.study import Prediction
from perf.traffic import Traffic

RESULTS = Path("perf/results/prediction")
MODELS = ("simulated_accelerator", "ranker", "text_recognition")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A measured point, what was predicted, and by how much that is off.

    `drift` is how much longer its executions took than the ramp's of the same sizes, `own_errors` what is off when it
    is predicted with its own executions' times: a miss that they do not share comes from the drift alone.
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
            client = OpenClient()
            if point.client == OPEN:
                lone = load_point(lone_path(folder, model, point.candidate.instances))
                if not lone.fits(ramps):
                    continue
                client = OpenClient.of(lone, ramps)
            stretch = client.stretch(Traffic.parse(point.load).rate_per_s)
            prediction = point.predicted(config, ramps, way=client.way, stretch=stretch)
            yield Compared(
                point=point,
                prediction=prediction,
                errors=point.errors(prediction),
                drift=point.drift(ramps),
                own_errors=point.errors(point.predicted(config, point.own(ramps), way=client.way)),
            )


@dataclass(frozen=True, kw_only=True)
class OpenClient:
    """What the open loop's client is otherwise than perf_analyzer: its way, and what it takes from the executions.

    An arrival a second makes executions longer by the share `each`, since its cores are the model's; together they
    make them at most `most` times as long, when the client, one process, has a core to itself.
    """

    way: Way | None = None
    each: float = 0.0
    most: float = 1.0

    @classmethod
    def of(cls, lone: Point, ramps: Profile) -> "OpenClient":
        """As few arrivals showed it."""
        way = ramps.nearest(lone.candidate.instances, lone.candidate.threads).way
        way = way.longer(lone.outside_us - way.mean_us(lone.counted.batches))
        longer = (
            lone.counted.busy_ns / 1e3 / Costs.of(lone.candidate, ramps).expected_us(lone.counted, lone.seconds) - 1
        )
        cores = lone.machine.cores
        most = cores / (cores - 1) if cores > 1 else 2.0
        return cls(way=way, each=max(0.0, longer) / Traffic.parse(lone.load).rate_per_s, most=most)

    def stretch(self, per_second: float) -> float:
        """How much longer executions take with so many arrivals."""
        return min(self.most, 1 + self.each * per_second)


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
    for client in (CLOSED, OPEN):
        some = [one for one in compared if one.point.client == client]
        held, own = sum(holds(one.errors) for one in some), sum(holds(one.own_errors) for one in some)
        console.print(
            f"{client}: {held} of {len(some)} within the limits, {own} with the times of their own executions",
            markup=False,
        )


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
            with bar(console, len(arguments.models) * (len(KINDS) + 2)) as told:
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
