"""The requests of a load for the simulated batcher, without the times on the way that `perf.simulate` adds."""

from perf.records.traffic import Traffic
from perf.simulate import clients
from perf.simulate.batcher.request import Request, Time
from perf.simulate.batcher.request_source import Arrivals, ClosedLoop, RequestSource


def request_source(traffic: Traffic, requests: int, *, turnaround: Time, seed: int = 0) -> RequestSource:
    """The clients of a closed loop send again `turnaround` ns after an answer."""
    if traffic.open:
        return Arrivals(list(clients.arrivals(traffic, requests, seed)))

    def make(number: int, client: int, at: Time) -> Request:
        return clients.request(traffic, number, client, at)

    return ClosedLoop(traffic.clients, requests, make, turnaround=turnaround)
