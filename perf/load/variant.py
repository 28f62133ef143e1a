"""A model's configuration with single values replaced, in a temporary model repository of its own.

Hand-written files stay as they are: the copy holds the whole configuration as one generated config.pbtxt, beside links
to the model's versions.
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

# The times of a model that only waits; scaled together they keep what batching gains.
TIMES = ("fixed_ms", "row_ms")
# And how long requests may wait for it, where that has a limit.
LIMIT = "queue_limit_ms"


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What replaces the configuration's own values; None keeps them.

    `delay_us` is `max_queue_delay_microseconds` and turns dynamic batching on. `parameters` replaces values of
    parameters that the configuration has. `time_scale` multiplies a stand-in's `fixed_ms` and `row_ms`, the delay and
    `queue_limit_ms` with them: the same system in slow motion, for clients that cannot keep up with it.
    """

    max_batch_size: int | None = None
    instances: int | None = None
    delay_us: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    time_scale: float = 1.0

    def apply(self, config: ModelConfig) -> ModelConfig:
        """A copy of `config` with the values replaced; raises `Mistake` where there is nothing to replace."""
        changed = ModelConfig()
        changed.CopyFrom(config)
        if self.max_batch_size is not None:
            changed.max_batch_size = self.max_batch_size
            if config.HasField("dynamic_batching"):
                # Sizes preferred with another maximum; without any, Triton prefers the maximum.
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
            raise Mistake(f"'{config.name}' has no {' and '.join(TIMES)} to scale: it does not only wait.")
        names = [*TIMES, *([LIMIT] if LIMIT in config.parameters else [])]
        now = {name: self.parameters.get(name, config.parameters[name].string_value) for name in names}
        return {name: f"{float(value) * self.time_scale:g}" for name, value in now.items()}


def waits(config: ModelConfig) -> bool:
    """Whether the model only waits, so that its times can be scaled."""
    return all(name in config.parameters for name in TIMES)


def read(model: str, config_name: str | None, repository: Path = REPOSITORY) -> ModelConfig:
    """The configuration on disk that `config_name` names."""
    return read_config(config_file(model_folder(model, repository), config_name))


@contextlib.contextmanager
def variant(config: ModelConfig, folder: Path, config_name: str | None = None) -> Iterator[Path]:
    """A repository with one model: `config`, and links to the versions in the model's own `folder`.

    And with the models that it calls, which lie beside `folder`, as `config_name` has them.
    """
    with tempfile.TemporaryDirectory(prefix="triton-batching-variant-") as made:
        _place(Path(made), config, folder)
        for step in with_steps([config.name], config_name, folder.parent)[1:]:
            _place(Path(made), read(step, config_name, folder.parent), model_folder(step, folder.parent))
        yield Path(made)


def _place(repository: Path, config: ModelConfig, folder: Path) -> None:
    model = repository / config.name
    model.mkdir()
    (model / "config.pbtxt").write_text(text_format.MessageToString(config))
    for version in folder.iterdir():
        if version.is_dir() and version.name != "configs":
            (model / version.name).symlink_to(version.resolve())
