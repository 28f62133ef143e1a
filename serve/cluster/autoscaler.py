"""Asks scaling.py every second how many replicas a deployment needs; its signal are the door's requests in flight."""

import time
from dataclasses import replace

from serve.cluster import scaling
from serve.cluster.plan import ScalingTable
from serve.cluster.scaling import DOWN, UP, History, Reading, Scaling

DECIDE_S = 1.0


def rules(table: ScalingTable) -> Scaling:
    """The rules of a plan's deployment, with the pace of Kubernetes."""
    return Scaling(
        least=table.min,
        most=table.max,
        target=table.target_pending,
        steepness=table.steepness,
        up=replace(UP, tolerance=table.tolerance),
        down=replace(DOWN, tolerance=table.tolerance, stabilisation_s=table.down_after_s),
    )


class Autoscaler:
    """Decides for one deployment from the mean of the samples since its last decision."""

    def __init__(self, table: ScalingTable) -> None:
        self._rules, self._history = rules(table), History()
        self._samples: list[float] = []
        self._decides_at = time.monotonic() + DECIDE_S

    def sample(self, in_flight: float) -> None:
        """Note the requests in flight per ready replica."""
        self._samples.append(in_flight)

    def decide(self, replicas: int, ready: int) -> tuple[int, str]:
        """The replicas to have from now on, and why if that is not `replicas`, else ""."""
        now = time.monotonic()
        if now < self._decides_at or not self._samples:
            return replicas, ""
        signal, self._samples, self._decides_at = sum(self._samples) / len(self._samples), [], now + DECIDE_S
        reading = Reading(replicas=replicas, ready=ready, signal=signal)
        wanted, self._history = scaling.scale(self._rules, reading, self._history, now)
        if wanted == replicas:
            return replicas, ""
        why = f"{signal:.1f} requests in flight at each of {ready} replicas, {self._rules.target:g} at capacity"
        return wanted, f"{replicas} -> {wanted} replicas ({why})"
