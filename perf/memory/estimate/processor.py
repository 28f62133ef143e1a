"""The processor whose kernels are estimated: this machine's, or another x86-64 one."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from triton_batching.machine import cpu_flags

_AVX512 = frozenset({"avx2", "avx512f", "avx512bw"})
KINDS: Mapping[str, frozenset[str]] = {
    "AVX2": frozenset({"avx2"}),
    "AVX-VNNI-INT8": frozenset({"avx2", "avx_vnni", "avx_vnni_int8"}),
    "AVX-512": _AVX512,
    "AMX": _AVX512 | {"avx512_vnni", "amx_tile", "amx_int8"},
}
"""The flags that decide which memory a kernel takes, after `MLAS_PLATFORM` in onnxruntime's platform.cpp."""

_chosen: ContextVar[frozenset[str] | None] = ContextVar("chosen", default=None)


def flags() -> frozenset[str]:
    """The flags of the processor in question, named as in /proc/cpuinfo."""
    chosen = _chosen.get()
    return frozenset(cpu_flags()) if chosen is None else chosen


@contextmanager
def like(kind: str) -> Iterator[None]:
    """Within the block estimates are for a processor of `KINDS`."""
    token = _chosen.set(KINDS[kind])
    try:
        yield
    finally:
        _chosen.reset(token)
