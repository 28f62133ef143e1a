"""The rules that decide when to add and remove replicas: ours and the field's, all with Kubernetes' mechanics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from perf.scale.curve import CurvePoint, ReplicaCurve

# Loads whose signals are tried as targets, as shares of the capacity.
LOADS = (
    0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.975, 1.0, 1.025, 1.05, 1.1
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A signal and the target that its source gives it. `unit` follows the number."""

    name: str
    title: str
    source: str
    unit: str = ""


PENDING = Rule(
    name="pending",
    title="pending requests, with their steepness",
    source="capacity of one replica x mean latency, simulated",
)
PLAIN = Rule(
    name="plain",
    title="pending requests in proportion",
    source="the same target, steepness 1",
)
QUEUE = Rule(
    name="queue",
    title="queue time per request",
    source="Triton's Helm charts: avg_time_queue_us, target 50",
    unit=" us",
)
RATIO = Rule(
    name="ratio",
    title="queue time / compute time",
    source="Triton's tutorial of TensorRT-LLM on Kubernetes: triton:queue_compute:ratio, target 1",
)
CPU = Rule(
    name="cpu",
    title="share of the time that instances execute",
    source="Kubernetes' resource metric, target 70 %; here the time of the instances stands for that of the CPU",
)
RULES: Mapping[str, Rule] = {rule.name: rule for rule in (PENDING, PLAIN, QUEUE, RATIO, CPU)}
FIELD = (QUEUE, RATIO, CPU)


def published(rule: Rule, curve: ReplicaCurve) -> float:
    """The target as its source gives it."""
    if rule in (PENDING, PLAIN):
        return curve.target_pending
    return {"queue": 50.0, "ratio": 1.0, "cpu": 0.7}[rule.name]


def steepness(rule: Rule, curve: ReplicaCurve) -> float:
    """How fast the signal grows with the load, as our function counts with it; the others' functions do not."""
    return curve.steepness if rule is PENDING else 1.0


def at_load(rule: Rule, curve: ReplicaCurve, load: float) -> float:
    """The signal of one replica at `load` times its capacity."""

    def value(of: Callable[[CurvePoint], float]) -> float:
        rates = curve.column(lambda point: point.rate_per_s)
        return float(np.interp(load * curve.capacity.rate_per_s, rates, curve.column(of)))

    return {
        "pending": lambda: value(lambda point: point.pending),
        "plain": lambda: value(lambda point: point.pending),
        "queue": lambda: value(lambda point: point.queue_us),
        "ratio": lambda: value(lambda point: point.queue_us / point.compute_us),
        "cpu": lambda: value(lambda point: point.busy),
    }[rule.name]()


def targets(rule: Rule, curve: ReplicaCurve) -> tuple[float, ...]:
    """The targets to try: the published one, and the signals of one replica at the `LOADS`.

    So every rule is tried where it works best for this model, and not only at a target that was meant for another.
    """
    tried = {at_load(rule, curve, load) for load in LOADS} | {published(rule, curve)}
    return tuple(sorted(tried))
