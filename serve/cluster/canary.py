"""A canary: a replica with a new configuration beside the ordinary ones, and a control, a new one with the old."""

import collections
from dataclasses import dataclass, field

from serve.cluster.occupant import ORDINARY

ROLES = CANARY, CONTROL = "canary", "control"
# This many starts of one of the two that fail end the canary.
MOST_FAILED = 2
ABANDONED = {CANARY: "the canary is abandoned", CONTROL: "its canary is abandoned"}


@dataclass(kw_only=True)
class Canary:
    """A canary that runs.

    share: of the deployment's requests, for each of the two. generation: of its replicas, also after its promotion.
    failed: starts that failed, by role.
    """

    config_name: str | None
    share: float
    generation: int
    failed: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def file(self) -> str:
        """The name of its configuration."""
        return self.config_name or "config.pbtxt"

    def weight(self, ordinary: int) -> int:
        """The weight of each of the two at the door, beside this many ordinary replicas.

        It is at most that of an ordinary replica, which a share above 1 / (ordinary + 2) would exceed.
        """
        return min(max(1, round(self.share / (1 - 2 * self.share) * ordinary * ORDINARY)), ORDINARY)

    def gets(self, ordinary: int) -> float:
        """The share of the requests that the weight gives to each of the two."""
        weight = self.weight(ordinary)
        return weight / (2 * weight + ordinary * ORDINARY)

    def announcement(self, ordinary: int) -> str:
        """What begins."""
        return f"a canary with {self.file} and a control begin, for {self.gets(ordinary):.1%} of the requests each"

    def is_over(self, role: str) -> bool:
        """Count a start of this role that failed; whether it was the last try."""
        self.failed[role] += 1
        return self.failed[role] >= MOST_FAILED
