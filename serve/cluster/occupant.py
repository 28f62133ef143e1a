"""One replica as the cluster keeps it: since when it starts, serves or leaves."""

import time
from dataclasses import dataclass, field

from serve.cluster.engine import Phase, Replica, ReplicaState
from serve.cluster.probe import Probe
from serve.cluster.reconcile import Member
from serve.front.door import Endpoint

# The weight of an ordinary replica at the door.
ORDINARY = 100
# What the log of a server that did not start says (serve/failure_log.py).
REASON = "reason: "
# A request that the door sent before it took the replica out may still be on its way.
SETTLE_S = 0.5
# A replica whose readiness is asked for every second is called unready after this time.
UNREADY_S = 3.0


@dataclass(kw_only=True)
class Occupant:
    """A replica.

    generation: the update that it belongs to. role: of a canary or its control, "" of an ordinary replica.
    leaving: why it leaves, "" if it stays. leaves_at: since when.
    out_at: since when the door sends it nothing. done_at: since when it has no requests left, so that the door may
    forget it and close its connections. stopping: whether the engine was told to stop it.
    is_lost: whether it counts as dead although it had not ended: another one took its place.
    """

    replica: Replica
    number: int
    generation: int
    role: str = ""
    state: ReplicaState = field(default_factory=lambda: ReplicaState(phase=Phase.STARTING))
    started_at: float = field(default_factory=time.monotonic)
    ready_at: float | None = None
    leaving: str = ""
    leaves_at: float = 0.0
    out_at: float | None = None
    done_at: float | None = None
    stopping: bool = False
    is_lost: bool = False
    probe: Probe | None = None
    _unready_at: float | None = None

    @property
    def name(self) -> str:
        """The replica's name."""
        return self.replica.name

    def begin(self, state: ReplicaState) -> None:
        """It is ready for the first time."""
        self.ready_at, self.probe = time.monotonic(), Probe(state)

    def member(self, generation: int) -> Member:
        """It, for `reconcile.step`; `generation` is the current one."""
        is_current, is_ready = self.generation == generation, self.ready_at is not None
        return Member(name=self.name, number=self.number, is_current=is_current, is_ready=is_ready)

    def leave(self, why: str) -> None:
        """It gets no new requests from now on."""
        self.leaving, self.leaves_at = why, time.monotonic()
        if self.probe:
            self.probe.drain()

    def end(self) -> None:
        """It has ended."""
        if self.probe:
            self.probe.end()

    def endpoint(self, weight: int = ORDINARY) -> Endpoint | None:
        """The replica as the door sees it; None before it is ready, and after it has answered its last request."""
        if self.state.phase is not Phase.READY or self.done_at is not None:
            return None
        return Endpoint(
            replica=self.name,
            host=self.state.host,
            http_port=self.state.http_port,
            grpc_port=self.state.grpc_port,
            is_draining=bool(self.leaving),
            weight=weight,
        )

    @property
    def fate(self) -> str:
        """How it ended by itself, in words."""
        return "died" if self.ready_at else "did not start"

    def death(self) -> tuple[str, str]:
        """Why it ended by itself, in a line; and further lines about it."""
        first, _, details = (self.state.problem or "it ended").partition("\n")
        first = first.rstrip(".")
        if details.startswith(REASON):
            reason, _, details = details.partition("\n")
            first = f"{first} ({reason.removeprefix(REASON)})"
        return first, details

    def farewell(self) -> str:
        """How it ended when it was leaving, in words."""
        died = self.state.problem and not self.is_lost
        return f"died before it had drained: {self.death()[0]}" if died else f"stopped ({self.leaving})"

    def is_drained(self, in_flight: int) -> bool:
        """Whether a replica that leaves has answered all its requests."""
        if self.probe is None:
            return True
        settled = self.out_at is not None and time.monotonic() - self.out_at > SETTLE_S
        return settled and not in_flight and self.probe.is_empty()

    @property
    def is_ending(self) -> bool:
        """Whether it has closed its ports, as a server does when it gets SIGTERM."""
        return self.probe is not None and not self.leaving and self.probe.is_closed()

    def hangs(self, hung_s: float) -> bool:
        """Whether it has not said for so long that it is ready."""
        return self.probe is not None and not self.leaving and self.probe.unready_s() > hung_s

    @property
    def is_unready(self) -> bool:
        """Whether it served and has not said for a while that it is ready."""
        return self.probe is not None and not self.leaving and self.probe.unready_s() > UNREADY_S

    def news(self, hung_s: float) -> str:
        """A sentence if it is not ready any more, or ready again since the last call, else ""."""
        if self.leaving or self.is_unready == (self._unready_at is not None):
            return ""
        since, self._unready_at = self._unready_at, time.monotonic() if self.is_unready else None
        if since is not None:
            return f"is ready again after {time.monotonic() - since + UNREADY_S:.1f} s"
        return f"has not said for {UNREADY_S:g} s that it is ready; after {hung_s:g} s (hung_s) another takes its place"

    @property
    def phase(self) -> str:
        """Its phase, in a word for `status`."""
        if self.stopping:
            return "stopping"
        if self.leaving:
            return "draining"
        return "unready" if self.is_unready else self.state.phase.value
