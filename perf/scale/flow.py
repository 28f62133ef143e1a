"""The requests of a pool as a flow: how many are answered, wait and are in time in one step, by requests in flight.

In steady state the requests in flight at a replica and its rate belong together (`ReplicaCurve`). Between steady states
the flow keeps that relation: a replica with x requests in flight answers g(x) per second, where g is the inverse of the
curve, and never more than at saturation. Each step solves

    x' + g(x') dt = x + arrivals

exactly on the curve's pieces, so a step of any length is stable and no request is lost.
This is the pointwise stationary fluid flow approximation (Wang, Tipper, Banerjee, Infocom 1996).
"""

from dataclasses import dataclass

import numpy as np

from perf.scale.curve import ReplicaCurve, Values

# Requests in flight beyond which the last piece of the curve goes on.
FAR = 1e9
# Pieces between saturation and the count at which every request is late.
PIECES = 48


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A replica in steps of `step_s` seconds, as tables over its requests in flight (`pending`, rising).

    reached: requests in flight before a step's answers, which leave `pending` after it. in_time: the share of those
    that come at `pending`. most_pending: requests above it are refused.
    """

    step_s: float
    pending: Values
    reached: Values
    in_time: Values
    most_pending: float

    @classmethod
    def of(cls, curve: ReplicaCurve, step_s: float) -> "Flow":
        """The tables of a curve."""
        known = np.concatenate([[0.0], curve.column(lambda point: point.pending)])
        rates = np.concatenate([[0.0], curve.column(lambda point: point.rate_per_s)])
        top, full = known[-1], 2 * known[-1]
        late = max(full, curve.target_pending + curve.saturated_per_s * curve.target_ms / 1e3)
        pending = np.unique(np.concatenate([known, np.linspace(top, late, PIECES), [full, FAR]]))
        answered = np.interp(pending, [*known, full, FAR], [*rates, *[curve.saturated_per_s] * 2])
        return cls(
            step_s=step_s,
            pending=pending,
            reached=pending + answered * step_s,
            in_time=_in_time(curve, pending, known),
            most_pending=curve.most_pending,
        )

    def after(self, reached: Values) -> Values:
        """Requests in flight at the end of a step in which `reached` were there or came, per replica."""
        return np.interp(reached, self.reached, self.pending)

    def share_in_time(self, pending: Values) -> Values:
        """The share in time of requests that come at these requests in flight."""
        return np.interp(pending, self.pending, self.in_time)


def _in_time(curve: ReplicaCurve, pending: Values, known: Values) -> Values:
    """The share in time of the requests that come while `pending` are in flight.

    Up to the last point it is that of the steady state. Beyond it the queue only grows: a request then waits
    longer than at the capacity, by the requests more over the rate of saturation.
    """
    shares = curve.column(lambda point: point.in_time)
    steady = np.interp(pending, known, [shares[0], *shares])  # an idle replica is as the lowest rate
    over_ms = (pending - curve.target_pending) / curve.saturated_per_s * 1e3
    left_ms = curve.target_ms - over_ms
    latencies = np.array(curve.latencies_ms)
    shifted = np.interp(left_ms, latencies, np.linspace(0, 1, len(latencies)), left=0.0, right=1.0)
    return np.where(pending <= known[-1], steady, np.minimum(steady, shifted))
