"""Checks a placement against its workload; shares no code with the packing algorithms.

With its own interpolation and sums it checks that each model's rate is served, that each duty cycle meets all targets
with whole batches, that the memory suffices, and that there are enough devices.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perf.pack.placement import Node, Placement
from perf.pack.workload import Model, Workload

# Relative tolerance for rounding.
ROUNDING = 1e-6


def violations(workload: Workload, placement: Placement) -> list[str]:
    """The rules that the placement breaks, one line each with the device and the numbers; empty if it is valid."""
    broken = list(_served(workload, placement))
    if len(placement.nodes) > workload.devices.count:
        broken.append(f"{len(placement.nodes)} devices are used, and there are {workload.devices.count}")
    if placement.bound > len(placement.nodes):
        broken.append(f"{len(placement.nodes)} devices are fewer than the claimed bound {placement.bound}")
    for number, node in enumerate(placement.nodes):
        broken += [f"device {number}: {text}" for text in _device(workload, node, placement.headroom)]
    return broken


def _served(workload: Workload, placement: Placement) -> Iterator[str]:
    served: defaultdict[str, float] = defaultdict(float)
    for node in placement.nodes:
        for share in node.shares:
            served[share.model] += share.rate_per_s
    for model in workload.models:
        if abs(served[model.name] - model.rate_per_s) > ROUNDING * model.rate_per_s:
            yield f"{model.name}: {served[model.name]:g} of {model.rate_per_s:g} requests per second are placed"
    for name in set(served) - {model.name for model in workload.models}:
        yield f"{name}: is not a model of the plan"


def _device(workload: Workload, node: Node, headroom: float) -> Iterator[str]:
    models = {model.name: model for model in workload.models}
    total_ms = memory = 0.0
    names = [share.model for share in node.shares]
    if len(set(names)) < len(names):
        yield f"a model is on it twice: {', '.join(names)}"
    for share in node.shares:
        model = models.get(share.model)
        if model is None:
            continue
        exec_ms = between(model.latency.sizes, model.latency.values, share.batch)
        if share.batch > model.latency.sizes[-1]:
            yield f"{share.model}: a batch of {share.batch} was not measured"
        if exec_ms > share.exec_ms * (1 + ROUNDING):
            yield f"{share.model}: {share.batch} rows take {exec_ms:g} ms, not {share.exec_ms:g}"
        arriving = share.rate_per_s * (1 + headroom) * node.duty_ms / 1e3
        if arriving > share.batch * (1 + ROUNDING):
            yield f"{share.model}: {arriving:.3f} requests arrive in a cycle and {share.batch} are executed"
        longest_ms = node.duty_ms + (node.duty_ms if len(names) > 1 else exec_ms) + model.overhead_ms
        if longest_ms > model.target_ms * (1 + ROUNDING):
            yield f"{share.model}: up to {longest_ms:g} ms, target {model.target_ms:g} ms"
        total_ms += exec_ms
        memory += between(model.memory.sizes, model.memory.values, share.batch)
    if total_ms > node.duty_ms * (1 + ROUNDING):
        yield f"its executions take {total_ms:g} ms of a cycle of {node.duty_ms:g} ms"
    if memory > workload.devices.memory_bytes * (1 + ROUNDING):
        yield f"its models hold {memory:.0f} bytes of {workload.devices.memory_bytes:.0f}"


def between(sizes: Sequence[int], values: Sequence[float], rows: int) -> float:
    """The value at `rows`, interpolated between the sizes around it; constant outside the sizes."""
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
