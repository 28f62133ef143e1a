"""One change to the configuration or the clients that could enlarge batches."""

from collections.abc import Callable
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from perf.simulate.batcher.rules import Rules
from perf.why.lengths import Computed


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change: what to write, a note on what the model or the clients must do, and the resulting rules.

    `enlarges`: executions get more rows than any has now, so its effect depends on their service time. `computed`: what
    its executions compute if requests of different length run together, None for other changes.
    """

    text: str
    note: str
    rules: Rules
    config: ModelConfig | None = None
    enlarges: bool = False
    computed: Computed | None = None


Edit = Callable[[str, str, Callable[[ModelConfig], object]], Change]
"""Makes a change of a text, a note and an edit of the configuration."""
