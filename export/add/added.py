"""A model that was read and proved, to be written into a repository."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from export.add.deployment import Deployment
from export.graph.batched import Batched
from export.graph.padding_proof import Padding
from export.graph.shared import Shared
from export.graph.signature import Signature, Tensor


@dataclass(frozen=True, kw_only=True)
class Added:
    """A model to write into the repository; if it has no batch axis, `batched` is None and `why_not` is the reason.

    `changes` are lines on what was changed in the graph so that Triton can serve it. `where` is the option for another
    repository, for commands. `shared` are inputs that all rows share. `padding` is how requests of different length
    share a batch, None if they do not.
    """

    deployment: Deployment
    origin: str
    signature: Signature
    batched: Batched | None
    why_not: str = ""
    changes: tuple[str, ...] = ()
    where: str = ""
    shared: Shared = field(default_factory=Shared)
    padding: Padding | None = None

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The inputs that clients send: the graph's, without masks that the backend makes."""
        made = self.padding.masks if self.padding else {}
        return {name: tensor for name, tensor in self.signature.inputs.items() if name not in made}

    @property
    def ragged(self) -> frozenset[str]:
        """The inputs whose requests may differ in length."""
        return frozenset(axis.tensor for axis in self.padding.fills) if self.padding else frozenset()

    @property
    def request(self) -> str:
        """What a request may hold if requests share no execution; "" if many rows were not proved."""
        return self.shared.rows if self.shared.batches else ""

    @property
    def max_batch_size(self) -> int:
        """Triton's value: 0 if the shapes have no batch axis."""
        return self.deployment.max_batch_size if self.batched else 0
