"""The allocators that need no plan, by name."""

from collections.abc import Callable

from perf.memory.allocators.allocator import Allocator
from perf.memory.allocators.best_fit import BestFit
from perf.memory.allocators.bfc import onnxruntime_power, onnxruntime_same, tensorflow
from perf.memory.allocators.buddy import Buddy
from perf.memory.allocators.caching import Caching
from perf.memory.allocators.device import Device
from perf.memory.allocators.naive import Naive
from perf.memory.allocators.slab import Slab

ONLINE: dict[str, Callable[[Device], Allocator]] = {
    "naive": Naive,
    "tensorflow bfc": tensorflow,
    "onnxruntime power": onnxruntime_power,
    "onnxruntime same": onnxruntime_same,
    "pytorch caching": Caching,
    "best fit": BestFit,
    "buddy": Buddy,
    "slab": Slab,
}
