"""B2: the scheduler and the sizes that it forms."""

from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule


@rule(
    "B203",
    Severity.ERROR,
    bad=Example("max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }"),
    good=Example("max_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }"),
    refused="dynamic batching preferred size must be <= max batch size",
)
def preferred_sizes_are_possible(config: Configuration) -> Iterator[Found]:
    """A preferred batch size is larger than `max_batch_size`, or not positive.

    tritonserver refuses the model: "dynamic batching preferred size must be <= max batch size".

    Source: core, ValidateModelConfig.
    Fix: raise max_batch_size, or leave the size out: without preferred sizes every batch is as large as it can be.
    """
    most = config.proto.max_batch_size
    for index, size in enumerate(config.proto.dynamic_batching.preferred_batch_size):
        if not 0 < size <= most:
            yield Found(
                config.at("dynamic_batching", "preferred_batch_size", index),
                f"preferred_batch_size {size} is not between 1 and max_batch_size {most}, so the model cannot load. "
                "Remove it, or raise max_batch_size.",
            )
