"""A graph that takes the elements of all requests as one flat tensor, and what config.pbtxt says of it."""

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import BatchInput, DataType, ModelConfig

COUNTS = "ITEM_SHAPES"


@dataclass(frozen=True, kw_only=True)
class Flat:
    """The ragged input and its `data_type`, the shape of a row with -1 for the length, and the output.

    With `scattered` the output has one vector for each element of the length, else one for each row. `answer` is the
    output's shape after that axis. `lengths` are the shortest and the longest that were tried. `made` is what the graph
    makes of the lengths for the model: "lengths", "mask", or "" for a model that takes neither.
    """

    input: str
    data_type: str
    item: tuple[int, ...]
    output: str
    scattered: bool
    answer: tuple[int, ...]
    lengths: tuple[int, int]
    made: str

    @property
    def config(self) -> ModelConfig:
        """What `ragged_feed` needs of the configuration."""
        config = ModelConfig(max_batch_size=1)
        config.input.add(
            name=self.input, data_type=DataType.Value(self.data_type), dims=self.item, allow_ragged_batch=True
        )
        counts = config.batch_input.add(kind=BatchInput.Kind.BATCH_ITEM_SHAPE, data_type=DataType.TYPE_INT32)
        counts.target_name.append(COUNTS)
        counts.source_input.append(self.input)
        config.output.add(name=self.output, dims=[-1, *self.answer] if self.scattered else self.answer)
        if self.scattered:
            scatter = config.batch_output.add()
            scatter.target_name.append(self.output)
            scatter.source_input.append(self.input)
        return config
