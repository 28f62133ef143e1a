"""Simulates the days of a plan's deployments and writes what they need: what `python -m perf.scale` does."""

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from perf.load.variant import read as read_config
from perf.measure.service_profile import SHARES, Profile, ServiceTimes, load
from perf.records import file
from perf.records.study import LatencyTarget
from perf.scale import day, objects, table
from perf.scale.comparison import ScaleRecord, compare, recommended
from perf.scale.curve import ReplicaCurve, Values, measure, simulations
from perf.scale.fleet import Conditions
from serve.cluster import plan_file
from serve.cluster.plan import Deployment, Plan
from triton_batching import whole_file
from triton_batching.options import DAY_S, MOST_REPLICAS
from triton_batching.terminal import Mistake, terminal

# A week of seconds takes minutes.
MOST_STEPS = 7 * DAY_S
SLOW = SHARES.index(0.95)
# Lines of progress of a task without a terminal.
LINES = 4


def run(arguments: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Simulate each deployment, print its table and write the record and the files asked for."""
    console = terminal()
    plan = plan_file.read(arguments.plan)
    _check(arguments)
    days = _days(arguments, plan)
    file.check_folder(arguments.out)
    records = []
    for deployment in _deployments(arguments, plan, days):
        profile = Profile(ramps=tuple(_measured(arguments, deployment.models[0])))
        console.print(_source(profile), markup=False)
        record = _simulated(arguments, plan, deployment, profile, days[deployment.name], command)
        records.append(record)
        table.show(record, console)
        path = file.write(record, arguments.out / f"{deployment.name}.{record.curve.model}.{file.digest(command)}.json")
        console.print(f"written: {path}", markup=False)
        for line in _settings(record, arguments.plan):
            console.print(line, markup=False)
    _write(arguments, records, console)


def _check(arguments: argparse.Namespace) -> None:
    """Raise `Mistake` for options that contradict each other or name a file that is there."""
    if (arguments.trace is None) == (arguments.day is None):
        raise Mistake("the day is missing or there twice: give --trace DAY.csv, or --day diurnal with --peak.")
    if (arguments.day is None) != (arguments.peak is None):
        raise Mistake("--peak belongs to --day diurnal, which needs it. Give both or neither.")
    if arguments.trace and arguments.days > 1:
        raise Mistake(f"--days {arguments.days}: a trace has the days that it has. Leave --days out.")
    for option in ("hpa", "keda"):
        path = getattr(arguments, option)
        if path and path.exists():
            raise Mistake(f"--{option} {path}: is there already, and is not overwritten. Name a new file.")


def _days(arguments: argparse.Namespace, plan: Plan) -> Mapping[str, Sequence[Values]]:
    """The rates of each deployment in steps, one list of days for each."""
    if arguments.day:
        deployment = _only(plan, arguments.deployment)
        seeds = range(arguments.seed, arguments.seed + arguments.days)
        rates = [day.diurnal(arguments.peak, seed=seed) for seed in seeds]
        return {deployment.name: [of_day.steps(arguments.step_s, DAY_S) for of_day in rates]}
    traced = day.read(arguments.trace)
    names = {name: plan.find(name) for name in traced}
    if unknown := [name for name, deployment in names.items() if deployment is None]:
        known = ", ".join(deployment.name for deployment in plan.deployment)
        raise Mistake(
            f"{arguments.trace}: {unknown[0]} is no deployment of the plan and no model of one. It has: {known}."
        )
    if twice := [name for name, number in Counter(d.name for d in names.values() if d).items() if number > 1]:
        raise Mistake(f"{arguments.trace}: {twice[0]} is there twice, by its name and by its model. Add up the rates.")
    length_s = max(rates.times_s[-1] for rates in traced.values()) + _last(traced)
    if (steps := length_s / arguments.step_s) > MOST_STEPS:
        raise Mistake(
            f"{arguments.trace}: has {steps:,.0f} steps of {arguments.step_s:g} s, and {MOST_STEPS:,} are the most. "
            "Give a part of it, or a larger --step-s."
        )
    return {
        deployment.name: [traced[name].steps(arguments.step_s, length_s)]
        for name, deployment in names.items()
        if deployment
    }


def _last(traced: Mapping[str, day.Rates]) -> float:
    """How long the last rate of a trace holds: as long as the one before it."""
    times = max((rates.times_s for rates in traced.values()), key=lambda times: times[-1])
    return times[-1] - times[-2] if len(times) > 1 else 60.0


def _only(plan: Plan, name: str | None) -> Deployment:
    if name is None and len(plan.deployment) == 1:
        return plan.deployment[0]
    deployment = plan.find(name) if name else None
    if deployment is None:
        known = ", ".join(deployment.name for deployment in plan.deployment)
        raise Mistake(f"--deployment {name or 'is missing'}: the plan has {known}. Name one of them.")
    return deployment


def _deployments(arguments: argparse.Namespace, plan: Plan, days: Mapping[str, object]) -> list[Deployment]:
    """The deployments to simulate; raises `Mistake` for one that cannot be."""
    wanted = [_only(plan, arguments.deployment)] if arguments.deployment else list(plan.deployment)
    deployments = [deployment for deployment in wanted if deployment.name in days]
    if not deployments:
        raise Mistake(f"--deployment {arguments.deployment}: the trace has {', '.join(days)}. Name one of them.")
    for deployment in deployments:
        where = f"{arguments.plan}: deployment {deployment.name}"
        if len(deployment.models) > 1:
            raise Mistake(
                f"{where}: has {len(deployment.models)} models, and perf.scale simulates replicas of one. Plan a "
                "deployment for each model."
            )
        if deployment.p99_ms is None:
            raise Mistake(f"{where}: has no p99_ms, and a capacity is that at a latency target. Add it.")
    if arguments.hpa or arguments.keda:
        if len(deployments) > 1:
            raise Mistake("--hpa and --keda are for one deployment. Name it: --deployment NAME.")
        if not arguments.max and not deployments[0].scaling:
            raise Mistake("--max: missing; what is written needs the most replicas that your machines hold. Give it.")
    return deployments


def _simulated(
    arguments: argparse.Namespace,
    plan: Plan,
    deployment: Deployment,
    profile: Profile,
    days: Sequence[Values],
    command: tuple[str, ...],
) -> ScaleRecord:
    scaling = deployment.scaling
    least = arguments.min or (scaling.min if scaling else 1)
    most = arguments.max or (scaling.max if scaling else MOST_REPLICAS)
    if least > most:
        raise Mistake(f"--min {least} is above --max {most}. Swap them.")
    conditions = Conditions(
        start_s=arguments.start_s,
        start_cv=arguments.start_cv,
        mtbf_s=arguments.mtbf_h * 3600,
        sync_s=arguments.decide_s,
    )
    steps = round(len(days[0]) * arguments.step_s / arguments.decide_s)
    if days[0].max() <= 0:
        raise Mistake(f"{deployment.name}: its rate is 0 all day. Give a trace with requests.")
    with _progress() as begin:
        curve = _curve(arguments, plan, deployment, profile, begin(f"{deployment.name}: one replica", simulations()))
        tried = compare(
            curve,
            days,
            conditions,
            least=least,
            most=most,
            step_s=arguments.step_s,
            seed=arguments.seed,
            tick=begin(f"{deployment.name}: the day at each target", steps),
        )
    return ScaleRecord(
        command=command,
        deployment=deployment.name,
        trace=str(arguments.trace or arguments.day),
        days=len(days),
        step_s=arguments.step_s,
        least=least,
        most=most,
        share=arguments.share,
        conditions=conditions,
        curve=curve,
        peak_per_s=float(max(rates.max() for rates in days)),
        tried=tuple(tried),
        target_pending=recommended(tried, arguments.share, len(days)),
    )


def _curve(
    arguments: argparse.Namespace, plan: Plan, deployment: Deployment, profile: Profile, tick: Callable[[], None]
) -> ReplicaCurve:
    """The curve of one replica, from the service times on record."""
    config = read_config(deployment.models[0], deployment.config_name, plan.repository)
    assert deployment.p99_ms is not None
    target = LatencyTarget(latency_ms=deployment.p99_ms)
    name = deployment.config_name or "default"
    curve = measure(config, profile, target, config_name=name, tick=tick)
    return curve if arguments.capacity is None else curve.faster(arguments.capacity / curve.capacity.rate_per_s)


def _measured(arguments: argparse.Namespace, model: str) -> list[ServiceTimes]:
    """The service times to use, those of `--service-time` or the model's on record."""
    ramps = [load(arguments.service_time)] if arguments.service_time else _ramps(model, arguments.records)
    if ramps[0].model != model:
        raise Mistake(
            f"{arguments.service_time}: service times of {ramps[0].model}, not of {model}. Name another record."
        )
    return ramps


def _source(profile: Profile) -> str:
    """A sentence on when the service times were measured, and how steady they were."""
    noisiest = max(profile.ramps, key=lambda ramp: ramp.noise[SLOW])
    return (
        f"service times: of {min(ramp.started_at for ramp in profile.ramps)}; one execution in twenty took at least "
        f"{noisiest.noise[SLOW]:.2f} x the mean of its size. Measured beside other work they are too long, and the "
        f"replicas too many: then repeat triton-batching profile {noisiest.model} --results NEW on an idle machine, "
        "and give --records NEW."
    )


def _ramps(model: str, folder: Path) -> list[ServiceTimes]:
    """The ramps of a model without a mix, of each count of instances and threads the one with the largest batches."""
    ramps: dict[tuple[int, int | None], ServiceTimes] = {}
    for path in sorted(folder.glob(f"{model}.*.b*.k*.json")):
        times = load(path)
        known = ramps.get((times.instances, times.threads))
        if times.model == model and not times.mix and (known is None or known.max_batch_size < times.max_batch_size):
            ramps[times.instances, times.threads] = times
    if not ramps:
        raise Mistake(
            f"{folder}: has no service times of {model}. Measure them: triton-batching profile {model}. Records with "
            "--mix are taken only by name: --service-time FILE."
        )
    return list(ramps.values())


def _write(arguments: argparse.Namespace, records: Sequence[ScaleRecord], console: Console) -> None:
    texts: Mapping[str, Callable[[ScaleRecord], str]] = {
        "hpa": objects.hpa,
        "keda": lambda record: objects.keda(record, arguments.prometheus),
    }
    for option, text in texts.items():
        if path := getattr(arguments, option):
            console.print(f"written: {whole_file.write(path, text(records[0]))}", markup=False)


def _settings(record: ScaleRecord, plan: Path) -> Iterator[str]:
    """The lines to set in the plan; none if no target reaches the goal."""
    if record.target_pending is None:
        return
    yield f"set in {plan}, in the deployment {record.deployment}:"
    yield "[deployment.scaling]"
    yield f"min = {record.least}"
    if record.most < MOST_REPLICAS:
        yield f"max = {record.most}"
    else:
        yield "# max = the most replicas that your machines hold"
    yield f"target_pending = {record.target_pending:.2f}"
    yield f"steepness = {record.curve.steepness:.2f}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """What begins a task of a name and a number of steps, and returns what to call after each step.

    It is a bar on a terminal, else lines on standard error.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines
        return
    with Progress(console=console, transient=True) as progress:

        def begin(name: str, steps: int) -> Callable[[], None]:
            task = progress.add_task(name, total=steps)
            return lambda: progress.advance(task)

        yield begin


def _in_lines(name: str, steps: int) -> Callable[[], None]:
    done = 0
    print(f"{name}: begins", file=sys.stderr)

    def tick() -> None:
        nonlocal done
        done += 1
        if done * LINES // steps > (done - 1) * LINES // steps:
            print(f"{name}: {done / steps:.0%}", file=sys.stderr)

    return tick
