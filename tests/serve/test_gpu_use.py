"""Utilisation and memory of GPUs: the texts of Triton and of nvidia-smi, and the samples of a window."""

import threading

import pytest

from serve.management import gpu_use
from serve.management.gpu_use import GpuUse
from serve.management.metrics import Device, Metrics

# Triton's page on a machine with two GPUs, without the counters of its models.
EXPORTED = """\
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="resnet50",version="1"} 1024
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-71ce41fd-3ac0-afe7-c995-21119f1e984a"} 0.750000
nv_gpu_utilization{gpu_uuid="GPU-8674351b-fff7-56c3-f545-26313154b8ed"} 0.250000
# HELP nv_gpu_memory_total_bytes GPU total memory, in bytes
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{gpu_uuid="GPU-71ce41fd-3ac0-afe7-c995-21119f1e984a"} 17179869184.000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-8674351b-fff7-56c3-f545-26313154b8ed"} 17179869184.000000
# HELP nv_gpu_memory_used_bytes GPU used memory, in bytes
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-71ce41fd-3ac0-afe7-c995-21119f1e984a"} 1073741824.000000
nv_gpu_memory_used_bytes{gpu_uuid="GPU-8674351b-fff7-56c3-f545-26313154b8ed"} 536870912.000000
# HELP nv_gpu_power_usage GPU power usage in watts
# TYPE nv_gpu_power_usage gauge
nv_gpu_power_usage{gpu_uuid="GPU-71ce41fd-3ac0-afe7-c995-21119f1e984a"} 58.954000
# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server started
# TYPE nv_energy_consumption counter
nv_energy_consumption{gpu_uuid="GPU-71ce41fd-3ac0-afe7-c995-21119f1e984a"} 0.000000
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.400000
"""
BOTH = Device(busy=0.5, memory_bytes=1.5 * 2**30, memory_total_bytes=2**35)


def test_the_gpus_that_triton_exports_are_one_device() -> None:
    assert gpu_use.together(Metrics.parse(EXPORTED).gpus) == BOTH
    without = "\n".join(line for line in EXPORTED.splitlines() if "gpu" not in line.lower()) + "\n"
    assert gpu_use.together(Metrics.parse(without).gpus) is None


def test_nvidia_smi_prints_percent_and_mib() -> None:
    assert gpu_use.parse("75, 1024\n25, 512\n") == Device(busy=0.5, memory_bytes=1536 * 2**20, memory_total_bytes=0.0)
    assert gpu_use.parse("") is None
    # A slice of a GPU (MIG) has no utilisation, but memory.
    assert gpu_use.parse("[N/A], 1024\n") == Device(busy=None, memory_bytes=2**30, memory_total_bytes=0.0)
    assert gpu_use.parse("[N/A], 1024\n50, 1024\n") == Device(busy=0.5, memory_bytes=2**31, memory_total_bytes=0.0)
    with pytest.raises(ValueError, match="N/A"):
        gpu_use.parse("75, [N/A]\n")


def test_the_memory_of_a_process_is_that_on_all_gpus() -> None:
    assert gpu_use.parse_processes("12, 100\n34, 1\n12, 50\n56, [N/A]\n") == {12: 150 * 2**20, 34: 2**20}
    assert gpu_use.parse_processes("") == {}


def test_gpus_of_which_triton_exports_no_memory_are_not_said_to_use_none() -> None:
    without = "".join(line for line in EXPORTED.splitlines(keepends=True) if "memory_used" not in line)
    assert Metrics.parse(without).gpus == ()
    idle = "".join(line for line in EXPORTED.splitlines(keepends=True) if "utilization" not in line)
    assert [gpu.busy for gpu in Metrics.parse(idle).gpus] == [None, None]


def test_sampling_goes_on_after_a_read_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, over = iter([None, BOTH, None, None, None, None, BOTH]), threading.Event()

    def read() -> Device | None:
        for device in reads:
            return device
        over.set()
        return None

    monkeypatch.setattr(gpu_use, "driver", read)
    monkeypatch.setattr(gpu_use, "PERIOD_S", 0.0)
    with gpu_use.sampled() as use:
        assert over.wait(10)
    assert [device for _, device in use.samples] == [BOTH, BOTH]


def test_only_the_samples_of_a_window_count() -> None:
    use = GpuUse(
        samples=[
            (at, Device(busy=busy, memory_bytes=mib * 2**20, memory_total_bytes=0.0))
            for at, busy, mib in ((9, 0.0, 900), (10, 0.4, 100), (15, 0.5, 300), (20, 0.9, 200), (21, 0.0, 900))
        ]
    )
    within = use.between(10, 20)
    assert within.busy == pytest.approx(0.6)
    assert (within.mean_mib, within.peak_mib) == (200, 300)
    # Without a utilisation there is memory nevertheless.
    slices = GpuUse(samples=[(10, Device(busy=None, memory_bytes=2**20, memory_total_bytes=0.0))])
    assert (slices.busy, slices.peak_mib) == (None, 1.0)
    nothing = use.between(1, 2)
    assert (nothing.busy, nothing.mean_mib, nothing.peak_mib) == (None, None, None)
