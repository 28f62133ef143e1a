"""The options of a sweep: ranges and shapes as perf_analyzer takes them, and values that it would not take."""

import argparse
import itertools

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.records.measurement import SAMPLES_DATA
from triton_batching.options import MOST_CLIENTS, refuse_unused
from triton_batching.terminal import Mistake


def parse_range(text: str) -> list[int]:
    """The numbers of `start:end:step`, as perf_analyzer takes it, or one number; raises `Mistake`."""
    parts = [int(part) if part.isdecimal() else 0 for part in text.split(":")]
    start, end, step = (parts + [parts[0], 1][len(parts) - 1 :])[:3]
    if len(parts) > 3 or start < 1 or end < start or step < 1 or end > MOST_CLIENTS:
        raise Mistake(
            f"'{text}' is not a range of concurrencies from 1 to {MOST_CLIENTS}. Write start:end:step, for example "
            "2:16:2."
        )
    return list(itertools.takewhile(lambda value: value <= end, itertools.count(start, step)))


def check(arguments: argparse.Namespace, config: ModelConfig) -> None:
    """Raise `Mistake` for values that perf_analyzer would answer with its help text."""
    inputs = [tensor.name for tensor in config.input]
    for name, _ in map(parse_shape, arguments.shape):
        if name not in inputs:
            raise Mistake(f"--shape {name}: '{arguments.model}' has no such input. It has: {', '.join(inputs)}.")
    largest = max(1, config.max_batch_size)
    limits = (("rows", largest), ("repeats", 1000), ("percentile", 99), ("window_ms", 600_000))
    for field, most in limits:
        value = getattr(arguments, field)
        if not 1 <= value <= most:
            raise Mistake(f"--{field.replace('_', '-')} {value}: must be from 1 to {most} for '{arguments.model}'.")
    refuse_unused(
        (bool(arguments.mix and arguments.ceiling), "--ceiling", "with --mix: onnxruntime alone runs rows of one size"),
        (bool(arguments.mix and arguments.shape), "--shape", "with --mix"),
        (bool(arguments.mix and arguments.input_data != SAMPLES_DATA), "--input-data", "with --mix"),
        (bool(arguments.mix and arguments.rows > 1), "--rows", "with --mix: perf_analyzer joins no rows of two sizes"),
    )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Name and dims of `name:1,32,100`, as perf_analyzer takes it; raises `Mistake`."""
    name, _, dims = text.rpartition(":")
    if not name or not all(dim.isdecimal() for dim in dims.split(",")):
        raise Mistake(f"'{text}' is not a shape. Write name:d1,d2,..., for example input.1:1,32,100.")
    return name, tuple(int(dim) for dim in dims.split(","))
