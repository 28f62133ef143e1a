"""A model's configuration with some values replaced, in a temporary model repository.

The repository has one generated config.pbtxt beside links to the model's versions, so hand-written files stay as they
are.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import REPOSITORY, config_file, model_folder, read_config, with_steps
from triton_batching.terminal import Mistake

# The times of a simulated model. Scaled together they keep the gain of batching.
TIMES = ("fixed_ms", "row_ms")
# The longest queue delay that can be asked for: an hour.
MOST_DELAY_MS = 3_600_000
# The longest time in its queue, if the model limits it.
LIMIT = "queue_limit_ms"


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Values that replace those of a configuration; None keeps a value.

    `delay_us` is `max_queue_delay_microseconds` and turns dynamic batching on. `parameters` replaces values of
    parameters that the configuration has. `time_scale` multiplies the times of a simulated model (`fixed_ms` and
    `row_ms`), the delay and `queue_limit_ms`: the same system in slow motion, so that the clients can keep up.
    """

    max_batch_size: int | None = None
    instances: int | None = None
    delay_us: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("--max-batch-size", self.max_batch_size), ("--instances", self.instances)):
            if value is not None and not 0 <= value < 2**31:
                raise Mistake(f"{name} {value}: must be from 0 to {2**31 - 1}.")

    def apply(self, config: ModelConfig) -> ModelConfig:
        """A copy of `config` with the values replaced; raises `Mistake` for a parameter that it does not have."""
        changed = ModelConfig()
        changed.CopyFrom(config)
        if self.max_batch_size is not None:
            changed.max_batch_size = self.max_batch_size
            if config.HasField("dynamic_batching"):
                # They belong to the other maximum; without them Triton prefers the maximum.
                changed.dynamic_batching.ClearField("preferred_batch_size")
        if self.delay_us is not None:
            changed.dynamic_batching.max_queue_delay_microseconds = self.delay_us
        if self.time_scale != 1.0 and changed.dynamic_batching.max_queue_delay_microseconds:
            batching = changed.dynamic_batching
            batching.max_queue_delay_microseconds = round(batching.max_queue_delay_microseconds * self.time_scale)
        if self.instances is not None:
            groups = changed.instance_group or [changed.instance_group.add()]
            for group in groups:
                group.count = self.instances
        for name, value in {**self.parameters, **self._scaled(config)}.items():
            if name not in config.parameters:
                known = ", ".join(sorted(config.parameters)) or "none"
                raise Mistake(f"'{config.name}' has no parameter '{name}' to replace. It has: {known}.")
            changed.parameters[name].string_value = value
        return changed

    def _scaled(self, config: ModelConfig) -> dict[str, str]:
        if self.time_scale == 1.0:
            return {}
        if not waits(config):
            raise Mistake(f"'{config.name}' has no {' and '.join(TIMES)} to scale: it is not a simulated model.")
        names = [*TIMES, *([LIMIT] if LIMIT in config.parameters else [])]
        now = {name: self.parameters.get(name, config.parameters[name].string_value) for name in names}
        return {name: f"{float(value) * self.time_scale:g}" for name, value in now.items()}


def delay_us(delay_ms: float) -> int:
    """The value of `--delay-ms` in microseconds; raises `Mistake` for one that is no queue delay."""
    if not 0 <= delay_ms <= MOST_DELAY_MS:
        raise Mistake(f"--delay-ms {delay_ms:g}: a delay is 0 to {MOST_DELAY_MS} milliseconds.")
    return round(1000 * delay_ms)


def waits(config: ModelConfig) -> bool:
    """Whether the model is a simulated one, whose times can be scaled."""
    return all(name in config.parameters for name in TIMES)


def read(model: str, config_name: str | None, repository: Path = REPOSITORY) -> ModelConfig:
    """The configuration of a model on disk; `config_name` is its variant, None its config.pbtxt."""
    return read_config(config_file(model_folder(model, repository), config_name))


@contextlib.contextmanager
def variant(config: ModelConfig, folder: Path, config_name: str | None = None) -> Iterator[Path]:
    """A repository with `config`, links to the versions in the model's `folder`, and the models that it calls.

    Those lie beside `folder`, and get their variant `config_name`.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-variant-") as repository:
        _place(Path(repository), config, folder)
        for step in with_steps([config.name], config_name, folder.parent)[1:]:
            _place(Path(repository), read(step, config_name, folder.parent), model_folder(step, folder.parent))
        yield Path(repository)


def _place(repository: Path, config: ModelConfig, folder: Path) -> None:
    model = repository / config.name
    model.mkdir()
    (model / "config.pbtxt").write_text(text_format.MessageToString(config))
    for version in folder.iterdir():
        if version.is_dir() and version.name != "configs":
            (model / version.name).symlink_to(version.resolve())
