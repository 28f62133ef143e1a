"""A placement checked against its workload from first principles; shares no code with the algorithms that made it.

It has its own interpolation and its own sums, and asks of every plan: is each model's rate served, does each duty cycle
keep every target with whole batches, does the memory hold, are there enough devices.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perf.pack.placement import Node, Placement
from perf.pack.workload import Model, Workload

# Relative; what a rate or a time may be off by rounding.
ROUNDING = 1e-6


def violations(workload: Workload, placement: Placement) -> list[str]:
    """Every rule that the placement breaks, one line each, with the device and the numbers; empty if it is sound."""
    found = list(_served(workload, placement))
    if len(placement.nodes) > workload.devices.count:
        found.append(f"{len(placement.nodes)} devices are used and there are {workload.devices.count}")
    if placement.bound > len(placement.nodes):
        found.append(f"{len(placement.nodes)} devices are fewer than the bound {placement.bound} that is claimed")
    for number, node in enumerate(placement.nodes):
        found += [f"device {number}: {text}" for text in _device(workload, node, placement.headroom)]
    return found


def _served(workload: Workload, placement: Placement) -> Iterator[str]:
    served: defaultdict[str, float] = defaultdict(float)
    for node in placement.nodes:
        for share in node.shares:
            served[share.model] += share.rate_per_s
    for model in workload.models:
        if abs(served[model.name] - model.rate_per_s) > ROUNDING * model.rate_per_s:
            yield f"{model.name}: {served[model.name]:g} of {model.rate_per_s:g} requests per second have a place"
    for name in set(served) - {model.name for model in workload.models}:
        yield f"{name}: is not a model of the plan"


def _device(workload: Workload, node: Node, headroom: float) -> Iterator[str]:
    models = {model.name: model for model in workload.models}
    taken = held = 0.0
    names = [share.model for share in node.shares]
    if len(set(names)) < len(names):
        yield f"a model is on it twice: {', '.join(names)}"
    for share in node.shares:
        model = models.get(share.model)
        if model is None:
            continue
        takes = between(model.latency.sizes, model.latency.values, share.batch) * slowdown(workload, node, share.model)
        if share.batch > model.latency.sizes[-1]:
            yield f"{share.model}: a batch of {share.batch} was never measured"
        if takes > share.exec_ms * (1 + ROUNDING):
            yield f"{share.model}: {share.batch} rows take {takes:g} ms, not {share.exec_ms:g}"
        arriving = share.rate_per_s * (1 + headroom) * node.duty_ms / 1e3
        if arriving > share.batch * (1 + ROUNDING):
            yield f"{share.model}: {arriving:.3f} requests come in a cycle and {share.batch} leave"
        if node.duty_ms + takes > (model.sla_ms - model.overhead_ms) * (1 + ROUNDING):
            yield f"{share.model}: up to {node.duty_ms + takes + model.overhead_ms:g} ms, target {model.sla_ms:g} ms"
        if node.together and takes > node.duty_ms * (1 + ROUNDING):
            yield f"{share.model}: an execution of {takes:g} ms is longer than its cycle of {node.duty_ms:g} ms"
        taken += takes
        held += between(model.memory.sizes, model.memory.values, share.batch)
    if not node.together and taken > node.duty_ms * (1 + ROUNDING):
        yield f"its executions take {taken:g} ms of a cycle of {node.duty_ms:g} ms"
    if held > workload.devices.memory_bytes * (1 + ROUNDING):
        yield f"its models hold {held:.0f} bytes of {workload.devices.memory_bytes:.0f}"


def slowdown(workload: Workload, node: Node, name: str) -> float:
    """What the others on the device make this model's executions take, over alone; 1 where they take turns.

    Infinite for models that run together and were never measured together.
    """
    if not node.together:
        return 1.0
    together = sorted(share.model for share in node.shares)
    for pair in workload.pairs:
        if sorted(pair.models) == together:
            return pair.factors[pair.models.index(name)]
    return float("inf")


def between(sizes: Sequence[int], values: Sequence[float], rows: int) -> float:
    """The value at so many rows: on the line between the two sizes around it; the nearest one's outside them."""
    if rows <= sizes[0]:
        return values[0]
    for index in range(1, len(sizes)):
        if rows <= sizes[index]:
            share = (rows - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
            return values[index - 1] + share * (values[index] - values[index - 1])
    return values[-1]


def of(workload: Workload, name: str) -> Model:
    """The model of a share."""
    return next(model for model in workload.models if model.name == name)
