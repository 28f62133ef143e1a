"""Which machines are the same for records."""

from dataclasses import replace

import pytest

from triton_batching.machine import Machine

HERE = Machine(cpu="AMD EPYC", cores=2, memory_bytes=25_276_502_016, system="Linux x86_64", gpu="H100")


@pytest.mark.parametrize("memory_bytes", [25_276_510_208, 25_200_000_000, 24_500_000_000, 26_000_000_000])
def test_a_kernel_that_keeps_more_memory_for_itself_makes_no_other_machine(memory_bytes: int) -> None:
    again = replace(HERE, memory_bytes=memory_bytes)
    assert again == HERE
    assert {HERE: "record"}[again] == "record"


@pytest.mark.parametrize(
    "other",
    [
        *(replace(HERE, cpu="AMD EPYC 7B13"), replace(HERE, cores=4), replace(HERE, memory_bytes=32 * 2**30)),
        *(replace(HERE, system="Linux aarch64"), replace(HERE, gpu=None), replace(HERE, gpu="H200")),
    ],
    ids=str,
)
def test_another_processor_memory_or_gpu_makes_another_machine(other: Machine) -> None:
    assert other != HERE
